"""What the ``tokenizer.ggml.*`` keys of a file say, checked once and held as plain data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import TokenType

from minfer_jax.errors import TokenizerError, UnsupportedError
from minfer_jax.gguf import Metadata

log = logging.getLogger("minfer_jax")

MODELS = {"gpt2": "byte-level BPE", "llama": "SentencePiece BPE"}
_OTHER_MODELS = {
    "bert": "WordPiece",
    "t5": "SentencePiece unigram",
    "rwkv": "RWKV",
    "plamo2": "PLaMo-2",
    "gemma4": "SentencePiece-style BPE with merges",
    "none": "no vocabulary at all",
    "no_vocab": "no vocabulary at all",
}


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of one file.

    tokens: text of each id, as the file writes it. types: [n_tokens] int32, of gguf's TokenType.
    scores: [n_tokens] float32, or None. merges: "left right" in order of priority, empty without them.
    bos, eos, eot, eom, unk, pad: ids, None where the file names none. source: the file's name in messages.
    """

    source: str
    model: str
    tokens: list[str]
    types: np.ndarray
    scores: np.ndarray | None
    merges: list[str]
    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    pad: int | None

    def ids_of(self, *types: TokenType) -> list[int]:
        """Return the ids of these types, ascending."""
        return np.flatnonzero(np.isin(self.types, types)).tolist()

    def control_ids(self) -> list[int]:
        """Return the ids that plain text never produces: control tokens and the unknown token."""
        return self.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)


def as_metadata(metadata: Mapping[str, Any]) -> Metadata:
    """Return metadata with checked getters; a plain mapping is wrapped."""
    return metadata if isinstance(metadata, Metadata) else Metadata(metadata)


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read and check the vocabulary. Raises UnsupportedError, TokenizerError, or GGUFError for a wrong key type."""
    source = metadata.source
    model = metadata.string("tokenizer.ggml.model", "none")
    if model not in MODELS:
        kind = f" ({_OTHER_MODELS[model]})" if model in _OTHER_MODELS else ""
        known = ", ".join(f"{name} ({kind})" for name, kind in MODELS.items())
        raise UnsupportedError(f"{source}: tokenizer.ggml.model is {model!r}{kind}; supported vocabularies: {known}")
    tokens = metadata.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError(f"{source}: tokenizer.ggml.tokens is empty; the file has no vocabulary")
    n = len(tokens)
    types = metadata.numbers("tokenizer.ggml.token_type", np.full(n, TokenType.NORMAL, np.int32))
    scores = metadata.numbers("tokenizer.ggml.scores", None)
    for key, array in (("token_type", types), ("scores", scores)):
        if array is not None and len(array) != n:
            raise TokenizerError(
                f"{source}: tokenizer.ggml.{key} has {len(array)} entries for {n} tokens; the file is damaged"
            )
    if model == "llama" and scores is None:
        raise TokenizerError(
            f"{source}: tokenizer.ggml.scores is missing; a SentencePiece vocabulary needs it to rank its merges"
        )
    if scores is not None and not np.isfinite(scores).all():
        raise TokenizerError(f"{source}: tokenizer.ggml.scores holds NaN or infinity; the file is damaged")
    if model == "gpt2" and "tokenizer.ggml.merges" not in metadata:
        raise TokenizerError(f"{source}: tokenizer.ggml.merges is missing; a BPE vocabulary needs its merges")

    def special(key: str, default: int | None = None) -> int | None:
        name = f"tokenizer.ggml.{key}"
        value = metadata.integer(name, default)
        if value is None or 0 <= value < n:
            return value
        if name in metadata:
            log.warning("%s: %s is %d, outside 0..%d; ignored", source, name, value, n - 1)
        return None

    # SentencePiece vocabularies have had these three at fixed places since Llama 1; old files leave them out.
    spm = model == "llama"
    return Vocabulary(
        source=source,
        model=model,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=metadata.strings("tokenizer.ggml.merges", []),
        bos=special("bos_token_id", 1 if spm else None),
        eos=special("eos_token_id", 2 if spm else None),
        eot=special("eot_token_id"),
        eom=special("eom_token_id"),
        unk=special("unknown_token_id", 0 if spm else None),
        pad=special("padding_token_id"),
    )
