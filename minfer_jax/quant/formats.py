"""The one table of quantisation formats: how a GGUF block splits into fields, and what its codes mean.

Every block format of GGUF that we keep packed is the same affine rule, written once in :func:`dequantize`:

    weight = value(code) * (d * scale) + min,       value(code) = codebook[code]  or  code - offset

with ``d`` (and ``dmin``) one float16 per block and ``scale`` (and ``mins``) one small integer per group of a block.
All products are exact in float32 (at most 24 significant bits), so the rule gives the bits of
``gguf.quants.dequantize`` whatever the order of evaluation. What differs between formats is data: widths, offsets,
and a ``split`` function that takes the block's bytes apart.

Source of the block layouts: the ``gguf`` library (``gguf.quants``) and the GGML format it documents.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

Array = Any  # numpy or JAX array: every function here runs on both, eagerly or traced


@dataclass(frozen=True)
class Fields:
    """A run of weights taken apart; leading axes are free.

    codes: [..., K] uint8 (int8 for 8-bit codes), one code per element.
    d, dmin: [..., K / block] float16 (``d`` is uint8 e8m0 for MXFP4); dmin is None for formats without a minimum.
    scales, mins: [..., K / group] integers, None for formats with one scale per block.
    """

    codes: Array
    d: Array
    scales: Array | None = None
    dmin: Array | None = None
    mins: Array | None = None


jax.tree_util.register_dataclass(Fields, ["codes", "d", "scales", "dmin", "mins"], [])


@dataclass(frozen=True)
class Format:
    """One packed format. ``split`` takes blocks [..., n, block bytes] uint8 to Fields with K = n * block."""

    type: GGMLQuantizationType
    bits: int
    group: int
    split: Callable[[Array], Fields]
    offset: int = 0
    codebook: tuple[int, ...] | None = None
    min_sign: int = 0  # +1: the block stores the minimum; -1: it stores what is subtracted; 0: no minimum

    @property
    def name(self) -> str:
        return self.type.name

    @property
    def block(self) -> int:
        """Weights per block."""
        return GGML_QUANT_SIZES[self.type][0]

    @property
    def block_bytes(self) -> int:
        return GGML_QUANT_SIZES[self.type][1]


def dequantize(fmt: Format, f: Fields) -> Array:
    """The affine rule above. Returns [..., K] float32, bit for bit what ``gguf.quants.dequantize`` gives.

    The declared exceptions: NaN payloads, and numbers that are subnormal in float32 (XLA flushes them to 0), such as
    those of MXFP4 blocks with the least scales. Native products overflow with MXFP4 scales of 2**121 and more.
    """
    if fmt.codebook is not None:
        value = jnp.asarray(np.array(fmt.codebook, np.float32))[f.codes]
    else:
        value = f.codes.astype(jnp.float32) - fmt.offset
    scale = _e8m0_half(f.d) if f.d.dtype == np.uint8 else f.d.astype(jnp.float32)
    if f.scales is not None:
        scale = jnp.repeat(scale, fmt.block // fmt.group, -1) * f.scales.astype(jnp.float32)
    weight = _by_group(value, scale, jnp.multiply)
    if fmt.min_sign and f.dmin is not None:
        low = f.dmin.astype(jnp.float32)
        if f.mins is not None:
            low = jnp.repeat(low, fmt.block // fmt.group, -1) * f.mins.astype(jnp.float32)
        weight = _by_group(weight, low, jnp.add if fmt.min_sign > 0 else jnp.subtract)
    return weight


def _by_group(x: Array, per_group: Array, op: Callable) -> Array:
    """Apply op between [..., K] and [..., groups], each group value serving K / groups neighbours."""
    grouped = x.reshape(*per_group.shape, -1)
    return op(grouped, per_group[..., None]).reshape(x.shape)


def _e8m0_half(e: Array) -> Array:
    """Half of the power of two 2**(e - 127), by bits: the MX scale under the convention of doubled codebook values."""
    e = e.astype(jnp.uint32)
    bits = jnp.where(e < 2, jnp.uint32(0x00200000) << e, (e - 1) << jnp.uint32(23))
    return bits.view(jnp.float32)


# --- taking block bytes apart -------------------------------------------------------------------------------------


def _cut(blocks: Array, *sizes: int) -> list[Array]:
    """Consecutive byte ranges of each block; the last one takes the rest."""
    ends = np.cumsum(sizes)
    return [blocks[..., a:b] for a, b in zip([0, *ends], [*ends, blocks.shape[-1]], strict=True)]


def _f16(field: Array) -> Array:
    """[..., n, 2] bytes -> [..., n] float16."""
    return field.view(np.float16)[..., 0]


def _flat(codes: Array) -> Array:
    """[..., n, block] -> [..., n * block]."""
    return codes.reshape(*codes.shape[:-2], -1)


def _bit_fields(data: Array, chunk: int, width: int) -> Array:
    """Each byte holds 8/width codes that lie ``chunk`` apart: [..., n, bytes] -> [..., n, bytes * 8 / width].

    GGML stores the low bits of a run of ``chunk`` codes, then the next bits of the next run in the same bytes.
    """
    wide = chunk % 4 == 0  # then four bytes at a time, which is what makes loading fast
    unit, each_byte = (np.uint32, 0x01010101) if wide else (np.uint8, 1)
    shifts, mask = np.arange(0, 8, width, dtype=unit)[:, None], unit(((1 << width) - 1) * each_byte)
    parts = data.view(unit).reshape(*data.shape[:-1], -1, 1, chunk // 4 if wide else chunk) >> shifts & mask
    return parts.reshape(*data.shape[:-1], -1).view(np.uint8)


def _join(low: Array, high: Array, shift: int) -> Array:
    return _flat(low | high << np.uint8(shift))


def _split_q4_0(blocks: Array) -> Fields:
    d, qs = _cut(blocks, 2)
    return Fields(_flat(_bit_fields(qs, 16, 4)), _f16(d))


def _split_q4_1(blocks: Array) -> Fields:
    d, m, qs = _cut(blocks, 2, 2)
    return Fields(_flat(_bit_fields(qs, 16, 4)), _f16(d), dmin=_f16(m))


def _split_q5_0(blocks: Array) -> Fields:
    d, qh, qs = _cut(blocks, 2, 4)
    return Fields(_join(_bit_fields(qs, 16, 4), _bit_fields(qh, 1, 1), 4), _f16(d))


def _split_q5_1(blocks: Array) -> Fields:
    d, m, qh, qs = _cut(blocks, 2, 2, 4)
    return Fields(_join(_bit_fields(qs, 16, 4), _bit_fields(qh, 1, 1), 4), _f16(d), dmin=_f16(m))


def _split_q8_0(blocks: Array) -> Fields:
    d, qs = _cut(blocks, 2)
    return Fields(_flat(qs).view(np.int8), _f16(d))


def _split_q2_k(blocks: Array) -> Fields:
    scales, qs, d, dmin = _cut(blocks, 16, 64, 2)
    return Fields(
        _flat(_bit_fields(qs, 32, 2)),
        _f16(d),
        _flat(scales & np.uint8(15)),
        _f16(dmin),
        _flat(scales >> np.uint8(4)),
    )


def _split_q3_k(blocks: Array) -> Fields:
    hmask, qs, scales, d = _cut(blocks, 32, 64, 12)
    low, high = _bit_fields(scales[..., :8], 8, 4), _bit_fields(scales[..., 8:], 4, 2)
    codes = _join(_bit_fields(qs, 32, 2), _bit_fields(hmask, 32, 1), 2)
    return Fields(codes, _f16(d), _join(low, high, 4).astype(np.int8) - np.int8(32))


def _k_scales(s: Array) -> tuple[Array, Array]:
    """The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit mins, the last four of each in two pieces."""
    a, b, c = s[..., :4], s[..., 4:8], s[..., 8:]
    six, four = np.uint8(63), np.uint8(15)
    scales = [a & six, (c & four) | (a >> np.uint8(6) << np.uint8(4))]
    mins = [b & six, (c >> np.uint8(4)) | (b >> np.uint8(6) << np.uint8(4))]
    join = jnp.concatenate if isinstance(s, jax.Array) else np.concatenate
    return _flat(join(scales, -1)), _flat(join(mins, -1))


def _split_q4_k(blocks: Array) -> Fields:
    d, dmin, s, qs = _cut(blocks, 2, 2, 12)
    scales, mins = _k_scales(s)
    return Fields(_flat(_bit_fields(qs, 32, 4)), _f16(d), scales, _f16(dmin), mins)


def _split_q5_k(blocks: Array) -> Fields:
    d, dmin, s, qh, qs = _cut(blocks, 2, 2, 12, 32)
    scales, mins = _k_scales(s)
    return Fields(_join(_bit_fields(qs, 32, 4), _bit_fields(qh, 32, 1), 4), _f16(d), scales, _f16(dmin), mins)


def _split_q6_k(blocks: Array) -> Fields:
    ql, qh, scales, d = _cut(blocks, 128, 64, 16)
    return Fields(_join(_bit_fields(ql, 64, 4), _bit_fields(qh, 32, 2), 4), _f16(d), _flat(scales).view(np.int8))


def _split_iq4_xs(blocks: Array) -> Fields:
    d, high, low, qs = _cut(blocks, 2, 2, 4)
    scales = _join(_bit_fields(low, 1, 4), _bit_fields(high, 1, 2), 4).astype(np.int8) - np.int8(32)
    return Fields(_flat(_bit_fields(qs, 16, 4)), _f16(d), scales)


def _split_mxfp4(blocks: Array) -> Fields:
    e, qs = _cut(blocks, 1)
    return Fields(_flat(_bit_fields(qs, 16, 4)), e[..., 0])


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_T = GGMLQuantizationType

PACKED: dict[str, Format] = {
    f.name: f
    for f in (
        Format(_T.Q4_0, 4, 32, _split_q4_0, offset=8),
        Format(_T.Q4_1, 4, 32, _split_q4_1, min_sign=1),
        Format(_T.Q5_0, 5, 32, _split_q5_0, offset=16),
        Format(_T.Q5_1, 5, 32, _split_q5_1, min_sign=1),
        Format(_T.Q8_0, 8, 32, _split_q8_0),
        Format(_T.Q2_K, 2, 16, _split_q2_k, min_sign=-1),
        Format(_T.Q3_K, 3, 16, _split_q3_k, offset=4),
        Format(_T.Q4_K, 4, 32, _split_q4_k, min_sign=-1),
        Format(_T.Q5_K, 5, 32, _split_q5_k, min_sign=-1),
        Format(_T.Q6_K, 6, 16, _split_q6_k, offset=32),
        Format(_T.IQ4_NL, 4, 32, _split_q4_0, codebook=_IQ4),
        Format(_T.IQ4_XS, 4, 32, _split_iq4_xs, codebook=_IQ4),
        Format(_T.MXFP4, 4, 32, _split_mxfp4, codebook=_E2M1_DOUBLED),
    )
}
"""Formats that stay packed in planes, by name."""

PLAIN: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
}
"""Formats whose one plane holds the values themselves, by name."""
