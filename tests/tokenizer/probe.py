"""A small BPE vocabulary that shows where a pre-tokenizer cuts: it can merge every pair of neighbouring bytes of some
texts, and every two neighbouring pairs, so a cut in the wrong place gives other tokens."""

from minfer_jax.tokenizer.bpe import BYTE_OF_CHARACTER

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def probe_vocabulary(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return (tokens, merges) for these texts."""
    written = ["".join(CHARACTER_OF_BYTE[byte] for byte in text.encode()) for text in texts]
    pairs = sorted({text[i : i + 2] for text in written for i in range(len(text) - 1)})
    quads = sorted({text[i : i + 4] for text in written for i in range(len(text) - 3)})
    tokens = [CHARACTER_OF_BYTE[byte] for byte in range(256)] + pairs + quads
    merges = [f"{pair[0]} {pair[1]}" for pair in pairs] + [f"{quad[:2]} {quad[2:]}" for quad in quads]
    return [*tokens, "<|end|>"], merges
