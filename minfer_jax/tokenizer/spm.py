"""SentencePiece BPE vocabularies (``tokenizer.ggml.model`` llama) on the ``sentencepiece`` library."""

import struct

import sentencepiece
from gguf.constants import TokenType

from minfer_jax.errors import TokenizerError
from minfer_jax.tokenizer.vocabulary import Vocabulary

SPACE = "▁"
_BYTE_TEXTS = {f"<0x{byte:02X}>": byte for byte in range(256)}

# Field numbers and values of sentencepiece_model.proto (ModelProto and its parts).
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE = 2


class SentencePieceBPE:
    """Encodes plain text, and knows the bytes of each id.

    add_space_prefix: a space goes in front of a text's first stretch and of each one after a special token, as
    llama.cpp does it.
    """

    def __init__(self, vocabulary: Vocabulary, add_space_prefix: bool, remove_extra_spaces: bool) -> None:
        self._vocabulary = vocabulary
        self._add_space_prefix = add_space_prefix
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(_model_proto(vocabulary, remove_extra_spaces))
        except RuntimeError as error:
            raise TokenizerError(
                f"{vocabulary.source}: sentencepiece refuses the vocabulary: {' '.join(str(error).split())}"
            ) from error

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a stretch of plain text; after_special: it begins the text or follows a special token."""
        if after_special and self._add_space_prefix:
            text = " " + text
        return self._processor.EncodeAsIds(text)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token of type normal, byte, user-defined, control or unknown."""
        text, kind = self._vocabulary.tokens[token], self._vocabulary.types[token]
        if kind == TokenType.BYTE and text in _BYTE_TEXTS:
            return bytes([_BYTE_TEXTS[text]])
        if kind == TokenType.NORMAL:
            text = text.replace(SPACE, " ")
        return text.encode()


def _model_proto(vocabulary: Vocabulary, remove_extra_spaces: bool) -> bytes:
    """Write the vocabulary as a serialised ModelProto: no file and no protobuf library needed."""
    assert vocabulary.scores is not None  # checked by read_vocabulary
    types = vocabulary.types.tolist()
    n_byte = len({vocabulary.tokens[i] for i in vocabulary.ids_of(TokenType.BYTE)} & _BYTE_TEXTS.keys())
    byte_fallback = n_byte == 256
    kinds = {t: t for t in (TokenType.NORMAL, TokenType.UNUSED)}
    # User-defined tokens are cut out of the text before; here they may only still arise from merges.
    kinds[TokenType.USER_DEFINED] = TokenType.NORMAL
    if byte_fallback:
        kinds[TokenType.BYTE] = TokenType.BYTE
    seen: set[str] = set()
    parts = []
    for i, (text, score, kind) in enumerate(
        zip(vocabulary.tokens, vocabulary.scores.astype("float32").tolist(), types, strict=True)
    ):
        kind = kinds.get(kind, TokenType.CONTROL)
        if not text or text in seen or "\0" in text:  # refused by sentencepiece; text never gives such an id
            text, kind = f"\ue000token {i}", TokenType.CONTROL
        seen.add(text)
        if i == vocabulary.unk:
            kind = TokenType.UNKNOWN  # there must be exactly one
        data = text.encode()
        piece = b"\x0a" + _varint(len(data)) + data + b"\x15" + struct.pack("<f", score) + b"\x18" + _varint(kind)
        parts.append(_message(_PIECES, piece))
    trainer = _number(3, _BPE) + _number(4, len(types)) + _number(35, byte_fallback)
    normalizer = _message(1, b"identity") + _number(3, False) + _number(4, remove_extra_spaces) + _number(5, True)
    return b"".join(parts) + _message(_TRAINER, trainer) + _message(_NORMALIZER, normalizer)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes()
    return (value & 0x7F | 0x80).to_bytes() + _varint(value >> 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data
