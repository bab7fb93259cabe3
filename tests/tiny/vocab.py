"""The smallest vocabularies that llama.cpp and this package accept: byte-level BPE and SentencePiece."""

from dataclasses import dataclass

from gguf import GGUFWriter, TokenType

_MERGES = ("t h", "Ġ a", "th e", "i n", "Ġ the", "e r")


@dataclass(frozen=True)
class Vocab:
    """One vocabulary; `size` is the number of tokens, `bos` the id that opens a text."""

    model: str
    pre: str | None
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None
    merges: tuple[str, ...] | None
    bos: int
    eos: int
    add_bos: bool

    @property
    def size(self) -> int:
        return len(self.tokens)

    def write(self, writer: GGUFWriter) -> None:
        """Put the tokenizer keys into a file that is being written."""
        writer.add_tokenizer_model(self.model)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.types))
        if self.scores is not None:
            writer.add_token_scores(list(self.scores))
            writer.add_unk_token_id(0)
        if self.merges is not None:
            writer.add_token_merges(list(self.merges))
        writer.add_bos_token_id(self.bos)
        writer.add_eos_token_id(self.eos)
        writer.add_add_bos_token(self.add_bos)


def byte_characters() -> list[str]:
    """The printable stand-in of each byte in GPT-2's byte-level alphabet, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable}
    stand_in |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def byte_bpe(pre: str = "gpt-2") -> Vocab:
    """256 byte tokens, a few merges and two control tokens."""
    tokens = [*byte_characters(), *(merge.replace(" ", "") for merge in _MERGES), "<|begin|>", "<|end|>"]
    types = [TokenType.NORMAL] * (len(tokens) - 2) + [TokenType.CONTROL] * 2
    return Vocab(
        "gpt2",
        pre,
        tuple(tokens),
        tuple(map(int, types)),
        None,
        _MERGES,
        bos=len(tokens) - 2,
        eos=len(tokens) - 1,
        add_bos=False,
    )


def sentencepiece() -> Vocab:
    """<unk>, <s>, </s>, 256 byte tokens and a few pieces with scores."""
    pieces = ("▁", "t", "h", "e", "a", "n", "i", "th", "▁a", "the", "▁the", "in")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    scores = [0.0] * (3 + 256) + [-float(i) for i in range(len(pieces))]
    return Vocab("llama", None, tuple(tokens), tuple(map(int, types)), tuple(scores), None, bos=1, eos=2, add_bos=True)
