"""A small SentencePiece vocabulary with every kind of token, its merges in an arbitrary order."""

import zlib

WORDS = "▁the ▁quick ▁brown ▁fox ▁jumps ▁over ▁lazy ▁dog abab ▁▁▁ naïve ▁über 12 ."
CONTROL = ("<unk>", "<s>", "</s>", "<|turn|>")
USER_DEFINED = ("<tag>", "\n\n", "<tagged>")
NORMAL, UNKNOWN, CONTROL_TYPE, USER_TYPE, BYTE = 1, 2, 3, 4, 6


def spm_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Return (tokens, scores, types)."""
    pieces = {word[i:j] for word in WORDS.split(" ") for i in range(len(word)) for j in range(i + 1, len(word) + 1)}
    normal = sorted(pieces, key=lambda piece: zlib.crc32(piece.encode()))
    tokens = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *USER_DEFINED, *normal]
    types = [UNKNOWN] + [CONTROL_TYPE] * 3 + [BYTE] * 256 + [USER_TYPE] * len(USER_DEFINED) + [NORMAL] * len(normal)
    scores = [0.0] * (len(tokens) - len(normal)) + [-float(i) for i in range(len(normal))]
    return tokens, scores, types
