"""Planes: the aligned arrays in which a packed tensor lives, codes packed into 32-bit words, rows grouped in tiles.

GGUF interleaves scales and codes in blocks of 17 to 210 bytes, which no vector unit likes. We keep them apart:

    codes        [..., N, K * w / 32] uint32    the low w bits of every code (w = 2, 4 or 8)
    codes_high   [..., N, K * h / 32] uint32    the remaining h bits (1 or 2) of 3-, 5- and 6-bit codes
    d, scales, dmin, mins                       as in :class:`~minfer_jax.quant.formats.Fields`

A word holds 32 / w consecutive codes: byte b (little-endian), bits j * w and up, is code 4 * j + b of them. One shift
and one mask of a vector of words so give four neighbours a word, which is what dot products of bytes take.

A tiled plane [..., ceil(N / 16), C, 16] holds rows in the lanes of a vector, padded with rows of zeros.
"""

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.quant.formats import Array, Fields, Format

TILE = 16
"""Rows in a tile."""

ORDER = ("values", "codes", "codes_high", "d", "scales", "dmin", "mins")
"""The names of planes, in the order in which native code takes those that a format has."""


def low_bits(fmt: Format) -> int:
    """Width of the plane ``codes``."""
    return {2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 8: 8}[fmt.bits]


def pack(fmt: Format, f: Fields) -> dict[str, Array]:
    """Fields -> planes in rows, leaving out what the format has not."""
    low = low_bits(fmt)
    codes = f.codes.view(np.uint8)
    planes = {"codes": _pack_words(codes & np.uint8((1 << low) - 1), low)}
    if fmt.bits > low:
        planes["codes_high"] = _pack_words(codes >> np.uint8(low), fmt.bits - low)
    planes |= {"d": f.d, "scales": f.scales, "dmin": f.dmin, "mins": f.mins}
    return {name: plane for name, plane in planes.items() if plane is not None}


def unpack(fmt: Format, planes: dict[str, Array]) -> Fields:
    """The inverse of :func:`pack`."""
    low = low_bits(fmt)
    codes = _unpack_words(planes["codes"], low)
    if fmt.bits > low:
        codes = codes | _unpack_words(planes["codes_high"], fmt.bits - low) << np.uint8(low)
    if fmt.bits == 8:
        codes = codes.view(np.int8)
    return Fields(codes, planes["d"], planes.get("scales"), planes.get("dmin"), planes.get("mins"))


def _pack_words(codes: Array, width: int) -> Array:
    """[..., K] uint8 codes below 2**width -> [..., K * width / 32] uint32."""
    fours = codes.view(np.uint32).reshape(*codes.shape[:-1], -1, 8 // width)
    words = fours[..., 0]
    for j in range(1, 8 // width):
        words = words | fours[..., j] << np.uint32(j * width)
    return words


def _unpack_words(words: Array, width: int) -> Array:
    data = words.view(np.uint8).reshape(*words.shape, 1, 4)
    codes = data >> np.arange(0, 8, width, dtype=np.uint8)[:, None] & np.uint8((1 << width) - 1)
    return codes.reshape(*words.shape[:-1], -1)


def untile(plane: jax.Array, rows: int) -> jax.Array:
    """[..., tiles, C, 16] -> [..., rows, C]."""
    apart = jnp.swapaxes(plane, -1, -2)
    return apart.reshape(*plane.shape[:-3], -1, plane.shape[-2])[..., :rows, :]
