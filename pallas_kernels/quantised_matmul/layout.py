"""Where each bit of a packed matrix lies: from codes and scales in rows to one array in the order the kernel reads.

Sixteen rows are a tile, 64 columns of a tile a pair (of blocks of 32), four pairs a chunk, the last one of a row
perhaps shorter. A tile is one run of bytes, chunk after chunk, so that one copy of consecutive bytes brings a chunk:

    pair      code words of each plane, lane by lane; then the scales of the pair, row by row
    chunk     its pairs; then, for blocks of 256, d (and dmin) of its 16 rows

Lane 4 g + t of a warp multiplies rows g and g + 8. Its 8 fragments of a pair, in the order (block, row half, column
half), are the bytes of an operand word of ``mma.m16n8k32``: columns 16 * (column half) + 4 t .. + 3 of a block. A plane
of width w keeps w words of a lane: fragment f in word f * w // 8, at bit f * w % 8 of every byte. With a codebook the
four codes of a fragment lie in neighbouring bits instead, as a byte permutation wants its selectors.

Everything here runs on numpy and on JAX arrays, also traced.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantised_matmul.formats import FORMATS, Format

Array = Any  # numpy or JAX array

ROWS = 16
"""Rows in a tile."""
PAIR = 64
"""Columns in a pair of blocks."""
CHUNK = 4
"""Pairs in a chunk."""


@dataclass(frozen=True)
class Fields:
    """One matrix taken apart, in rows; axes in front stack equal matrices.

    codes: [..., N, K] uint8 (int8 for 8-bit codes). d, dmin: [..., N, K / block] float16 (d uint8 for MXFP4).
    scales, mins: [..., N, K / group] uint8 or int8. None for what the format has not.
    """

    codes: Array
    d: Array
    scales: Array | None = None
    dmin: Array | None = None
    mins: Array | None = None


jax.tree_util.register_dataclass(Fields, ["codes", "d", "scales", "dmin", "mins"], [])


@dataclass(frozen=True)
class Layout:
    """How a matrix is packed, and its sizes, in bytes unless said otherwise.

    format: a name in ``FORMATS``. rows, columns: of the matrix, N and K.

    Raises ValueError for columns that are no whole blocks.
    """

    format: str
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.columns % self.fmt.block:
            raise ValueError(f"{self.format}: {self.columns} columns are not a multiple of {self.fmt.block}")

    @property
    def fmt(self) -> Format:
        return FORMATS[self.format]

    @property
    def tiles(self) -> int:
        """Tiles in the matrix."""
        return -(-self.rows // ROWS)

    @property
    def pairs(self) -> int:
        """Pairs in a row."""
        return -(-self.columns // PAIR)

    @property
    def chunks(self) -> int:
        """Chunks in a row."""
        return -(-self.pairs // CHUNK)

    @property
    def code_bytes(self) -> int:
        """Codes of a pair."""
        return ROWS * PAIR * self.fmt.bits // 8

    @property
    def row_scale_bytes(self) -> int:
        """Scales of a pair that belong to rows g and g + 8."""
        one = 2 * 2 * self.fmt.halves if self.fmt.has_scales else 2 * 2 * 2
        return 2 * one if self.fmt.min_sign else one

    @property
    def row_block_bytes(self) -> int:
        """What a chunk keeps once for rows g and g + 8."""
        if not self.fmt.has_scales:
            return 0
        return 8 if self.fmt.min_sign else 4

    @property
    def pair_bytes(self) -> int:
        return self.code_bytes + 8 * self.row_scale_bytes

    @property
    def chunk_bytes(self) -> int:
        """A whole chunk."""
        return CHUNK * self.pair_bytes + 8 * self.row_block_bytes

    @property
    def last_chunk_bytes(self) -> int:
        missing = self.chunks * CHUNK - self.pairs
        return self.chunk_bytes - missing * self.pair_bytes

    @property
    def tile_bytes(self) -> int:
        return (self.chunks - 1) * self.chunk_bytes + self.last_chunk_bytes

    @property
    def tile_words(self) -> int:
        return self.tile_bytes // 4


def pack(layout: Layout, fields: Fields) -> Array:
    """Fields [..., N, K] -> [..., tiles, tile words] uint32. Rows beyond N are zeros."""
    fmt, xp = layout.fmt, _module(fields.codes)
    pair = [_pack_codes(layout, fields.codes)]
    if fmt.has_scales:
        pair.append(_pack_scales(layout, [fields.scales, fields.mins], fmt.group))
    else:
        d = _exponents_to_bfloat16(fields.d) if fmt.exponent_scale else fields.d
        pair.append(_pack_scales(layout, [d, fields.dmin], 32))
    words = xp.concatenate(pair, -1)  # [..., tiles, pairs, words]
    lead = words.shape[:-3]
    if fmt.has_scales:
        words = words.reshape(*lead, layout.tiles, layout.chunks, -1)
        words = xp.concatenate([words, _pack_blocks(layout, [fields.d, fields.dmin])], -1)
    return words.reshape(*lead, layout.tiles, layout.tile_words)


def unpack(layout: Layout, packed: Array) -> Fields:
    """The inverse of :func:`pack`."""
    fmt, lead = layout.fmt, packed.shape[:-2]
    scale_words, block_words = 2 * layout.row_scale_bytes, 2 * layout.row_block_bytes
    blocks = None
    if fmt.has_scales:
        packed = packed.reshape(*lead, layout.tiles, layout.chunks, -1)
        packed, blocks = packed[..., :-block_words], packed[..., -block_words:]
    packed = packed.reshape(*lead, layout.tiles, layout.pairs, -1)
    codes = _unpack_codes(layout, packed[..., :-scale_words])
    narrow, wide = np.int8 if fmt.signed_scales else np.uint8, np.uint16 if fmt.exponent_scale else np.float16
    first, second = _unpack_scales(layout, packed[..., -scale_words:], narrow if fmt.has_scales else wide)
    if blocks is not None:
        d, dmin = _unpack_blocks(layout, blocks)
        return Fields(codes, d, first, dmin, second)
    return Fields(codes, _bfloat16_to_exponents(first) if fmt.exponent_scale else first, dmin=second)


def interleave(first: Array, second: Array) -> Array:
    """Two packed matrices of one layout as one whose tiles alternate: what a gated product reads."""
    both = _module(first).stack([first, second], -2)
    return both.reshape(*first.shape[:-2], -1, first.shape[-1])


def _module(array: Array) -> Any:
    return jnp if isinstance(array, jax.Array) else np


def _padded(array: Array, rows: int, columns: int) -> Array:
    """Zeros below and to the right."""
    below, right = rows - array.shape[-2], columns - array.shape[-1]
    if below == right == 0:
        return array
    return _module(array).pad(array, [(0, 0)] * (array.ndim - 2) + [(0, below), (0, right)])


# --- codes --------------------------------------------------------------------------------------------------------


def _pack_codes(layout: Layout, codes: Array) -> Array:
    """[..., N, K] -> [..., tiles, pairs, code words]."""
    lead = codes.shape[:-2]
    codes = _contiguous(codes).view(np.uint8)
    quads = _padded(codes, layout.tiles * ROWS, layout.pairs * PAIR).view(np.uint32)
    quads = quads.reshape(*lead, layout.tiles, 2, 8, layout.pairs, 2, 2, 4)  # row half, g, pair, block, half, t
    n = len(lead)
    quads = quads.transpose(*range(n), n, n + 3, n + 2, n + 6, n + 4, n + 1, n + 5)  # g, t, block, row half, half
    quads = quads.reshape(*lead, layout.tiles, layout.pairs, 32, 8)
    planes, low = [], 0
    for width in layout.fmt.widths:
        part = (quads >> np.uint32(low)) & np.uint32(((1 << width) - 1) * 0x01010101)
        words = _join(layout.fmt, part, width)  # [..., 32, width]
        if width == 8:  # a lane reads at most four words at once
            words = words.reshape(*words.shape[:-1], 2, 4).swapaxes(-2, -3)
        planes.append(words.reshape(*quads.shape[:-2], -1))
        low += width
    return _module(codes).concatenate(planes, -1)


def _unpack_codes(layout: Layout, words: Array) -> Array:
    lead = words.shape[:-3]
    quads, start, low = None, 0, 0
    for width in layout.fmt.widths:
        part = words[..., start : start + 32 * width]
        shape = (*part.shape[:-1], 32, width)
        if width == 8:
            part = part.reshape(*part.shape[:-1], 2, 32, 4).swapaxes(-2, -3)
        part = _split(layout.fmt, part.reshape(shape), width) << np.uint32(low)
        quads = part if quads is None else quads | part
        start, low = start + 32 * width, low + width
    assert quads is not None
    quads = quads.reshape(*lead, layout.tiles, layout.pairs, 8, 4, 2, 2, 2)
    n = len(lead)
    quads = quads.transpose(*range(n), n, n + 5, n + 2, n + 1, n + 4, n + 6, n + 3)
    quads = _contiguous(quads.reshape(*lead, layout.tiles * ROWS, -1))
    codes = quads.view(np.int8 if layout.fmt.bits == 8 else np.uint8)
    return codes[..., : layout.rows, : layout.columns]


def _join(fmt: Format, quads: Array, width: int) -> Array:
    """Eight fragments of a lane, [..., 8] with a code in each byte -> [..., width] words."""
    per = 8 // width
    parts = quads.reshape(*quads.shape[:-1], width, per)
    if fmt.codebook is not None:
        parts = parts | parts >> np.uint32(4)  # neighbouring bytes to one byte, then the two bytes together
        parts = (parts & np.uint32(0xFF)) | ((parts >> np.uint32(8)) & np.uint32(0xFF00))
        return parts[..., 0] | parts[..., 1] << np.uint32(16)
    words = parts[..., 0]
    for j in range(1, per):
        words = words | parts[..., j] << np.uint32(j * width)
    return words


def _split(fmt: Format, words: Array, width: int) -> Array:
    """The inverse of :func:`_join`."""
    xp = _module(words)
    if fmt.codebook is not None:
        parts = xp.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], -1)
        parts = (parts & np.uint32(0xFF)) | (parts & np.uint32(0xFF00)) << np.uint32(8)
        parts = (parts | parts << np.uint32(4)) & np.uint32(0x0F0F0F0F)
    else:
        mask = np.uint32(((1 << width) - 1) * 0x01010101)
        parts = xp.stack([words >> np.uint32(j * width) & mask for j in range(8 // width)], -1)
    return parts.reshape(*words.shape[:-1], 8)


# --- scales -------------------------------------------------------------------------------------------------------


def _pack_scales(layout: Layout, arrays: list[Array | None], group: int) -> Array:
    """[..., N, K / group] each -> [..., tiles, pairs, words]: for each g, rows g and g + 8 of one, then of the next."""
    parts = []
    for array in arrays:
        if array is not None:
            lead, n = array.shape[:-2], array.ndim - 2
            part = _padded(array, layout.tiles * ROWS, layout.pairs * (PAIR // group))
            part = part.reshape(*lead, layout.tiles, 2, 8, layout.pairs, PAIR // group)
            part = part.transpose(*range(n), n, n + 3, n + 2, n + 1, n + 4)
            parts.append(_words(part.reshape(*lead, layout.tiles, layout.pairs, 8, -1)))
    words = _module(parts[0]).concatenate(parts, -1)
    return words.reshape(*words.shape[:-2], -1)


def _unpack_scales(layout: Layout, words: Array, dtype: Any) -> list[Array | None]:
    lead, n = words.shape[:-3], words.ndim - 3
    words = words.reshape(*lead, layout.tiles, layout.pairs, 8, -1)
    arrays = []
    count = 2 if layout.fmt.min_sign else 1
    each = words.shape[-1] // count
    for i in range(count):
        part = _contiguous(words[..., i * each : (i + 1) * each])
        part = part.view(dtype if i == 0 else _unsigned(dtype))
        part = part.reshape(*lead, layout.tiles, layout.pairs, 8, 2, -1)
        part = part.transpose(*range(n), n, n + 3, n + 2, n + 1, n + 4)
        part = part.reshape(*lead, layout.tiles * ROWS, -1)
        columns = layout.columns // (layout.fmt.group if layout.fmt.has_scales else layout.fmt.block)
        arrays.append(part[..., : layout.rows, :columns])
    return (arrays + [None])[:2]


def _unsigned(dtype: Any) -> Any:
    return np.uint8 if dtype == np.int8 else dtype


def _pack_blocks(layout: Layout, arrays: list[Array | None]) -> Array:
    """[..., N, K / 256] float16 each -> [..., tiles, chunks, words]: for each g, rows g and g + 8."""
    parts = []
    for array in arrays:
        if array is not None:
            lead, n = array.shape[:-2], array.ndim - 2
            part = _padded(array, layout.tiles * ROWS, layout.chunks)
            part = part.reshape(*lead, layout.tiles, 2, 8, layout.chunks)
            parts.append(_words(part.transpose(*range(n), n, n + 3, n + 2, n + 1)))
    words = _module(parts[0]).concatenate(parts, -1)
    return words.reshape(*words.shape[:-2], -1)


def _unpack_blocks(layout: Layout, words: Array) -> list[Array | None]:
    lead, n = words.shape[:-3], words.ndim - 3
    words = words.reshape(*lead, layout.tiles, layout.chunks, 8, -1)
    arrays = []
    for i in range(words.shape[-1]):
        part = _contiguous(words[..., i : i + 1]).view(np.float16)  # [..., tiles, chunks, 8, 2]
        part = part.transpose(*range(n), n, n + 3, n + 2, n + 1).reshape(*lead, layout.tiles * ROWS, -1)
        arrays.append(part[..., : layout.rows, :])
    return (arrays + [None])[:2]


def _words(array: Array) -> Array:
    return _contiguous(array).view(np.uint32)


def _contiguous(array: Array) -> Array:
    return array if isinstance(array, jax.Array) else np.ascontiguousarray(array)


def _exponents_to_bfloat16(e: Array) -> Array:
    """The bits of half of 2**(e - 127), the MX scale under doubled codebook values, as uint16."""
    xp = _module(e)
    e = e.astype(np.uint16)
    return xp.where(e < 2, np.uint16(0x20) << e, (e - np.uint16(1)) << np.uint16(7)).astype(np.uint16)


def _bfloat16_to_exponents(bits: Array) -> Array:
    xp = _module(bits)
    return xp.where(bits < 0x80, bits >> np.uint16(6), (bits >> np.uint16(7)) + np.uint16(1)).astype(np.uint8)
