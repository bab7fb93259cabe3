"""Which tensor types are readable: plain numbers, and every type that the `gguf` library can dequantise."""

from functools import cache

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Plain numbers, which need no dequantisation (the library leaves F64 and the integers to the reader).
_PLAIN = frozenset(
    getattr(GGMLQuantizationType, name) for name in ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
)

# Numbers that ggml gave out and took back; the library's enumeration no longer names them.
_REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@cache
def _is_readable(kind: GGMLQuantizationType) -> bool:
    if kind in _PLAIN:
        return True
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        # The library has no list of what it can dequantise, so it is asked with one block of zeros.
        dequantize(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def readable_type(number: int) -> GGMLQuantizationType | None:
    """Return the type with this number in a tensor table, or None when it is unknown or cannot be read."""
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        return None
    return kind if _is_readable(kind) else None


def readable_types() -> tuple[GGMLQuantizationType, ...]:
    """Return every readable type, in the order of their numbers."""
    return tuple(kind for kind in GGMLQuantizationType if _is_readable(kind))


def type_label(number: int) -> str:
    """Return how to speak of a type number: its name, "Q4_0_4_4 (removed from GGUF)", or "type 250"."""
    if number in _REMOVED:
        return f"{_REMOVED[number]} (removed from GGUF)"
    try:
        return GGMLQuantizationType(number).name
    except ValueError:
        return f"type {number}"
