"""Byte-level BPE vocabularies (``tokenizer.ggml.model`` gpt2) on the ``tokenizers`` library."""

import logging

from gguf.constants import TokenType
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from minfer_jax.errors import TokenizerError
from minfer_jax.tokenizer.pretokenizers import PreTokenizer
from minfer_jax.tokenizer.vocabulary import Vocabulary

log = logging.getLogger("minfer_jax")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's way to write bytes as printable characters: those that print stand for themselves, the others
    follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()


class ByteLevelBPE:
    """Encodes plain text, and knows the bytes of each id.

    A byte that the vocabulary has no token for (some leave out bytes that their training text lacked) is dropped, as
    llama.cpp and ``tokenizers`` do, but with a warning.
    """

    def __init__(self, vocabulary: Vocabulary, rule: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._missing = len(vocabulary.tokens)  # the id of bytes without a token, one past the real ones
        self._warned = False
        self._tokenizer = HFTokenizer(self._model(rule))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
            + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )

    def _model(self, rule: PreTokenizer) -> models.BPE:
        vocabulary = self._vocabulary
        merges = []
        for i, merge in enumerate(vocabulary.merges):
            left, _, right = merge.partition(" ")
            if not (left and right) or " " in right:
                raise TokenizerError(
                    f"{vocabulary.source}: tokenizer.ggml.merges[{i}] is {merge!r}; expected two tokens with one space "
                    "between"
                )
            merges.append((left, right))
        ids = {token: i for i, token in reversed(list(enumerate(vocabulary.tokens)))}
        # Merges must not reach control tokens: those never come from plain text.
        hidden = {vocabulary.tokens[i] for i in vocabulary.control_ids()}
        hidden.update(vocabulary.tokens[i] for i in vocabulary.ids_of(TokenType.UNUSED))
        known = {token: i for token, i in ids.items() if token not in hidden}
        unknown = "\0no token for this byte\0"
        known[unknown] = self._missing
        try:
            return models.BPE(known, merges, unk_token=unknown, ignore_merges=rule.whole_words)
        except Exception:  # a merge of or to a token that is not there; the library tells no more than that
            possible = [(a, b) for a, b in merges if a in known and b in known and a + b in known]
            log.warning(
                "%s: %d of %d merges name no plain token of the vocabulary; ignored",
                vocabulary.source,
                len(merges) - len(possible),
                len(merges),
            )
            return models.BPE(known, possible, unk_token=unknown, ignore_merges=rule.whole_words)

    def encode(self, text: str, after_special: bool) -> list[int]:
        """Return the ids of a stretch of plain text; what stands before it makes no difference here."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._missing in ids:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s: the vocabulary has no token for some bytes of a text; they are dropped",
                    self._vocabulary.source,
                )
            ids = [i for i in ids if i != self._missing]
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token of type normal, user-defined, control or unknown."""
        text = self._vocabulary.tokens[token]
        if self._vocabulary.types[token] == TokenType.NORMAL:
            try:
                return bytes(BYTE_OF_CHARACTER[character] for character in text)
            except KeyError:  # not in the byte alphabet, so never produced by text; shown as it is written
                pass
        return text.encode()
