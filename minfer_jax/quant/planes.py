"""Planes: the aligned arrays in which a packed tensor lives, and the packing of narrow codes into bytes.

GGUF interleaves scales and codes in blocks of 18 to 210 bytes, which no vector unit likes. We keep them apart:

    codes        [..., K * w / 8] uint8    the low w bits of every code (w = 2, 4 or 8), consecutive codes in a byte
    codes_high   [..., K * h / 8] uint8    the remaining h bits (1 or 2) of 3-, 5- and 6-bit codes
    d, scales, dmin, mins                  as in :class:`~minfer_jax.quant.formats.Fields`
"""

import jax.numpy as jnp
import numpy as np

from minfer_jax.quant.formats import Array, Fields, Format

_LOW_BITS = {2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 8: 8}


def pack(fmt: Format, f: Fields) -> dict[str, Array]:
    """Fields -> planes, leaving out what the format has not."""
    low = _LOW_BITS[fmt.bits]
    planes = {"codes": f.codes if low == 8 else _pack_bits(f.codes & np.uint8((1 << low) - 1), low)}
    if fmt.bits > low:
        planes["codes_high"] = _pack_bits(f.codes >> np.uint8(low), fmt.bits - low)
    planes |= {"d": f.d, "scales": f.scales, "dmin": f.dmin, "mins": f.mins}
    return {name: plane for name, plane in planes.items() if plane is not None}


def unpack(fmt: Format, planes: dict[str, Array]) -> Fields:
    """The inverse of :func:`pack`."""
    low = _LOW_BITS[fmt.bits]
    codes = planes["codes"] if low == 8 else _unpack_bits(planes["codes"], low)
    if fmt.bits > low:
        codes = codes | _unpack_bits(planes["codes_high"], fmt.bits - low) << np.uint8(low)
    return Fields(codes, planes["d"], planes.get("scales"), planes.get("dmin"), planes.get("mins"))


def _pack_bits(codes: Array, width: int) -> Array:
    """[..., K] codes below 2**width -> [..., K * width / 8]; the first of a byte's codes in its low bits."""
    n = 8 // width
    parts = codes.reshape(*codes.shape[:-1], -1, n)
    packed = parts[..., 0]
    for i in range(1, n):
        packed = packed | parts[..., i] << np.uint8(i * width)
    return packed


def _unpack_bits(packed: Array, width: int) -> Array:
    shifts = jnp.arange(0, 8, width, dtype=jnp.uint8)
    codes = packed[..., None] >> shifts & jnp.uint8((1 << width) - 1)
    return codes.reshape(*packed.shape[:-1], -1)
