"""The public tokenizer: one object made from a file's metadata."""

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gguf.constants import TokenType

from minfer_jax.errors import ArgumentError, TokenizerError
from minfer_jax.gguf import Metadata
from minfer_jax.tokenizer.bos import start_id, with_bos
from minfer_jax.tokenizer.bpe import ByteLevelBPE
from minfer_jax.tokenizer.chat import ChatTemplates
from minfer_jax.tokenizer.ends import (
    find_end_of_turn,
    find_ends_of_generation,
    guarded_user_defined,
    named_specials,
)
from minfer_jax.tokenizer.literals import LiteralMatcher
from minfer_jax.tokenizer.pretokenizers import find_pre_tokenizer
from minfer_jax.tokenizer.spm import SentencePieceBPE
from minfer_jax.tokenizer.streaming import StreamDecoder
from minfer_jax.tokenizer.vocabulary import Vocabulary, as_metadata, read_vocabulary

log = logging.getLogger("minfer_jax")


class Tokenizer:
    """Text to ids and back for one model file. Immutable; safe to share between threads, and it pickles.

    Text is plain by default: the text of a control token (``<|im_end|>``) inside it is split like any other, while
    user-defined tokens (Gemma's runs of spaces and HTML tags) are always matched, except those that read like an end
    token (``</s>``). ``parse_special=True`` matches them all.

    Attributes:
        vocab_size: number of ids. pre: name of the splitting rule in use.
        bos_id, eos_id, eot_id: ids or None. add_bos: whether the model wants BOS in front of a text.
        eog_ids: ids that end a generation: EOS, end of turn, and control tokens with the name of one.
        special_ids: ids that are no text: control tokens and the unknown token.
        chat_template: Jinja source from the file, or None.
    """

    def __init__(self, metadata: Mapping[str, Any], pre: str | None = None) -> None:
        metadata = as_metadata(metadata)
        vocabulary = read_vocabulary(metadata)
        self._adds_space = False
        adds_bos = True
        if vocabulary.model == "gpt2":
            self.pre: str = pre or metadata.string("tokenizer.ggml.pre", None) or _missing_pre(vocabulary.source)
            rule = find_pre_tokenizer(self.pre, vocabulary.source)
            adds_bos = rule.adds_bos
            self._model = ByteLevelBPE(vocabulary, rule)
        else:
            if pre not in (None, "default"):
                raise ArgumentError(
                    f"pre is {pre!r}, but {vocabulary.source} has a SentencePiece vocabulary, which merges text whole: "
                    "leave pre out"
                )
            self.pre = "default"  # whatever the file's key says
            self._adds_space = metadata.boolean("tokenizer.ggml.add_space_prefix", True)
            self._model = SentencePieceBPE(
                vocabulary,
                add_space_prefix=self._adds_space,
                remove_extra_spaces=metadata.boolean("tokenizer.ggml.remove_extra_whitespaces", False),
            )
        self._origin = (dict(metadata), metadata.source, pre)
        self._vocabulary = vocabulary
        self.vocab_size: int = len(vocabulary.tokens)
        self.bos_id: int | None = vocabulary.bos
        self.eos_id: int | None = vocabulary.eos
        self.eot_id: int | None = find_end_of_turn(vocabulary)
        self.eog_ids: frozenset[int] = find_ends_of_generation(vocabulary)
        self.add_bos: bool = vocabulary.bos is not None and metadata.boolean("tokenizer.ggml.add_bos_token", adds_bos)
        self.special_ids: frozenset[int] = frozenset(vocabulary.control_ids() + named_specials(vocabulary))
        on_request = sorted(self.special_ids.union(guarded_user_defined(vocabulary)))
        always = [i for i in vocabulary.ids_of(TokenType.USER_DEFINED) if i not in on_request]
        self._control = LiteralMatcher(self._texts(on_request), _strips_after(metadata, vocabulary, on_request))
        self._user_defined = LiteralMatcher(self._texts(always))
        self._chat = ChatTemplates(metadata, self._special_texts())

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], pre: str | None = None) -> "Tokenizer":
        """Build the tokenizer that the ``tokenizer.*`` keys of a GGUF file describe.

        pre: name of the splitting rule, instead of the file's ``tokenizer.ggml.pre``.

        Raises UnsupportedError (another kind of vocabulary, or an unknown rule), TokenizerError (damaged vocabulary),
        GGUFError (a key is missing or of the wrong type), ArgumentError (pre for a SentencePiece vocabulary).
        """
        return cls(metadata, pre)

    # ---- text to ids

    def encode(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False) -> list[int]:
        """Return the ids of a text.

        add_bos: put BOS in front; None follows the file. Never a second one where the text already starts with it.
        parse_special: match control tokens in the text. For trusted text only: a user's ``<|im_end|>`` ends a turn.

        No end-of-text id is ever appended. Raises TokenizerError for lone surrogates (U+D800..U+DFFF), ArgumentError
        when the text is no string or a wanted BOS does not exist.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"text must be a string, not {_shown(text)}")
        parts = self._control.split(text) if parse_special else [text]
        return self._with_bos(self._encode_parts(parts), add_bos)

    def prefix_ids(self) -> list[int]:
        """Return what stands before the first id of a text by the file's policy: [bos_id] or []."""
        return self._with_bos([], None)

    def start_id(self) -> int:
        """Return the id to begin from where there is nothing else: BOS, else EOS. TokenizerError without either."""
        return start_id(bos=self.bos_id, eos=self.eos_id)

    def _with_bos(self, ids: list[int], wanted: bool | None) -> list[int]:
        return with_bos(ids, bos=self.bos_id, file_adds=self.add_bos, wanted=wanted)

    def _encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        ids: list[int] = []
        after_special = True
        for part in parts:
            for piece in (part,) if isinstance(part, int) else self._user_defined.split(part):
                if isinstance(piece, int):
                    ids.append(piece)
                    after_special = True
                else:
                    _check_encodable(piece)
                    ids.extend(self._model.encode(piece, after_special))
                    after_special = False
        return ids

    # ---- ids to text

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of ids; ``decode(encode(text))`` is the text.

        skip_special: leave out control tokens. Bytes that are no UTF-8 become U+FFFD; ids without a token give "". For
        vocabularies that put a space in front of every stretch of text, that one space is taken off again; to decode
        the continuation of a text, use ``stream_decoder``, which keeps it. Raises ArgumentError for ids out of range.
        """
        pieces: list[bytes] = []
        begins = self._adds_space
        for i in self.check_ids(ids):
            piece = self._bytes(i, skip_special)
            normal = self._vocabulary.types[i] in (TokenType.NORMAL, TokenType.BYTE)
            pieces.append(piece.removeprefix(b" ") if begins and normal else piece)
            begins = self._adds_space and not normal
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes an id stands for: the text of a control token, b"" for ids without a token.

        Raises ArgumentError for an id out of range."""
        return self._bytes(self.check_ids([token])[0], skip_special=False)

    def token_text(self, token: int) -> str:
        r"""Return an id for display: its text, bytes of incomplete characters written as ``\xf0``."""
        if self._vocabulary.types[self.check_ids([token])[0]] == TokenType.UNUSED:
            return self._vocabulary.tokens[token]
        return self.token_bytes(token).decode("utf-8", "backslashreplace")

    def stream_decoder(self, skip_special: bool = True) -> StreamDecoder:
        """Return a decoder that takes ids one by one, for the continuation of a text."""
        return StreamDecoder(lambda token: self._bytes(self.check_ids([token])[0], skip_special))

    def _bytes(self, token: int, skip_special: bool) -> bytes:
        if self._vocabulary.types[token] == TokenType.UNUSED or (skip_special and token in self.special_ids):
            return b""
        return self._model.token_bytes(token)

    def check_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the ids as plain integers. Raises ArgumentError unless all are integers inside the vocabulary."""
        if isinstance(ids, set | frozenset):
            raise ArgumentError(f"ids must be in order, not a set: {_shown(ids)}")
        if isinstance(ids, Iterable) and not (isinstance(ids, Sequence) or hasattr(ids, "__array__")):
            ids = list(ids)
        try:
            array: np.ndarray = np.asarray(ids)
        except ValueError:  # lists of different lengths
            array = np.empty((1, 1), np.int64)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ArgumentError(f"ids must be a flat sequence of integers, not {_shown(ids)}")
        outside = array[(array < 0) | (array >= self.vocab_size)] if array.size else array
        if outside.size:
            raise ArgumentError(f"id {outside[0]} is outside the vocabulary (0..{self.vocab_size - 1})")
        return [int(i) for i in array]

    # ---- chat

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the file's chat template, or None."""
        return self._chat.default

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return a conversation as one text, by the file's chat template.

        messages: dicts with role and content, as in the OpenAI API. Text parts are joined with newlines; a "developer"
        message counts as "system" where the template does not know that role. template: Jinja source, or the name of
        another template in the file. add_generation_prompt: end with the beginning of an answer. variables: more names
        for the template (tools, enable_thinking, ...).

        Templates run in a sandbox with limits on time and size (see the module ``sandbox``). Raises ChatTemplateError
        (no template, a broken or unsafe one, or its own refusal) and ArgumentError (malformed messages).
        """
        return self._chat.render(messages, template, add_generation_prompt, variables)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: str | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return the ids of a conversation; arguments as in ``render_chat``.

        Control tokens come from the template only: their text inside messages or variables stays plain text. BOS goes
        in front where the file asks for it and the template did not write it.
        """
        parts = self._chat.render_parts(messages, template, add_generation_prompt, variables, self._control)
        return self._with_bos(self._encode_parts(parts), None)

    # ---- housekeeping

    def with_eog_ids(self, ids: Iterable[int]) -> "Tokenizer":
        """Return a copy that ends generation at these ids instead of the file's."""
        other = copy.copy(self)
        other.eog_ids = frozenset(self.check_ids(ids))
        return other

    def __copy__(self) -> "Tokenizer":
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (*self._origin, self.eog_ids)

    def __repr__(self) -> str:
        kind = type(self._model).__name__
        return f"Tokenizer({kind}, {self.vocab_size} tokens, pre={self.pre!r}, add_bos={self.add_bos})"

    def _texts(self, ids: Iterable[int]) -> list[tuple[str, int]]:
        return [(self._vocabulary.tokens[i], i) for i in ids]

    def _special_texts(self) -> dict[str, str]:
        named = {name: getattr(self._vocabulary, name) for name in ("bos", "eos", "unk", "pad")}
        return {f"{name}_token": self._vocabulary.tokens[i] for name, i in named.items() if i is not None}


def _rebuild(values: dict[str, Any], source: str, pre: str | None, eog_ids: frozenset[int]) -> Tokenizer:
    return Tokenizer.from_metadata(Metadata(values, source), pre).with_eog_ids(sorted(eog_ids))


def _missing_pre(source: str) -> str:
    log.warning(
        "%s: tokenizer.ggml.pre is missing, so the splitting rule is a guess (default); ids may be wrong: give the "
        "right one with pre=...",
        source,
    )
    return "default"


def _strips_after(metadata: Metadata, vocabulary: Vocabulary, special: list[int]) -> list[int]:
    """Phi-3's special tokens swallow the white space behind them; its files do not say so."""
    name = metadata.string("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return []
    return [i for i in special if vocabulary.tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")]


def _check_encodable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the text holds the lone surrogate U+{ord(text[error.start]):04X}, which is no character, at place "
            f"{error.start} of {_shown(text)}; replace it, for instance by U+FFFD"
        ) from error


def _shown(value: Any) -> str:
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:57] + '...'}"
