"""The chunks in which llama.cpp's perplexity tool reads a text (tools/perplexity/perplexity.cpp), for perplexity and KL
divergence alike."""

from dataclasses import dataclass

import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model

_N_CTX = 512


@dataclass(frozen=True)
class Chunks:
    """Pieces of a text that are read each on its own, from position 0.

    ids: int32 [n, n_ctx], as fed to the model, so with BOS as id 0 of each chunk where the model wants one. n_tokens:
    ids of the whole text.
    """

    ids: np.ndarray
    n_tokens: int

    @property
    def n_ctx(self) -> int:
        """Ids of a chunk."""
        return self.ids.shape[1]

    @property
    def n_scored(self) -> int:
        """How many of the last ids of each chunk are scored; the last of them is never fed."""
        return scored_of(self.n_ctx)


def scored_of(n_ctx: int) -> int:
    """How many of the last ids of a chunk are scored: those behind id n_ctx / 2."""
    return n_ctx - n_ctx // 2 - 1


def check_n_ctx(model: Model, n_ctx: int | None, default: int | None = None) -> int:
    """Ids of a chunk or window, at most the model's; None: ``default``, or the model's window if that is less.

    Raises ArgumentError naming the argument.
    """
    if n_ctx is None:
        n_ctx = min(default or model.config.n_ctx, model.config.n_ctx)
    n_ctx = check_integer("n_ctx", n_ctx, 4)
    if n_ctx > model.config.n_ctx:
        raise ArgumentError(
            f"n_ctx is {n_ctx}, more than the model's window of {model.config.n_ctx}; lower it, or load the model "
            "with a larger window"
        )
    return n_ctx


def cut_chunks(
    model: Model, text: str, n_ctx: int | None, max_chunks: int | None, parse_special: bool, instead: str = ""
) -> Chunks:
    """The text in separate chunks of n_ctx ids (None: 512); what is left at the end is dropped, and max_chunks are
    enough. instead: what else to suggest where the text is shorter than two chunks.

    Raises ArgumentError naming the argument, TokenizerError.
    """
    n_ctx = check_n_ctx(model, n_ctx, _N_CTX)
    if max_chunks is not None:
        max_chunks = check_integer("max_chunks", max_chunks, 1)
    ids = model.tokenizer.encode(text, parse_special=parse_special)
    if len(ids) < 2 * n_ctx:
        raise ArgumentError(
            f"the text has {len(ids)} tokens and this protocol needs {2 * n_ctx}, two chunks of n_ctx; give more "
            f"text{', ' if instead else ' or '}a smaller n_ctx (--n-ctx){instead}"
        )
    n = min(len(ids) // n_ctx, max_chunks or len(ids))
    chunks = np.array(ids[: n * n_ctx], np.int32).reshape(n, n_ctx)
    prefix = model.tokenizer.prefix_ids()
    chunks[:, : len(prefix)] = prefix
    return Chunks(chunks, len(ids))
