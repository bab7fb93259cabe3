"""The kernel's arithmetic in jax.numpy, for places without its GPU: the same roundings of x and the same order of sums.

Bits differ from the kernel's where it multiplies and adds in one rounding; nothing else does. It expands all codes, so
it is for tests.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantised_matmul.layout import CHUNK, PAIR, Layout, unpack
from pallas_kernels.quantised_matmul.plan import Plan
from pallas_kernels.quantised_matmul.reference import scale_values

Array = Any


def quantise(x: Array) -> tuple[jax.Array, jax.Array]:
    """[M, K] float32 -> integers [M, K] int32 of 16 bits and scales [M, K / 32] float32, powers of two."""
    blocks = jnp.asarray(x).reshape(*x.shape[:-1], -1, 32)
    exponent = jnp.max(jnp.abs(blocks), -1).view(jnp.int32) & 0x7F800000
    bits = jnp.maximum(exponent, 15 << 23) - (14 << 23)
    inverse = ((254 << 23) - bits).view(jnp.float32)
    scale = jnp.where(exponent < 0x7F800000, bits.view(jnp.float32), jnp.nan)
    integers = jnp.minimum(jnp.round(blocks * inverse[..., None]), 32767).astype(jnp.int32)
    return integers.reshape(x.shape), scale


def quantised_matmul(layout: Layout, packed: Array, x: Array) -> jax.Array:
    """packed: [tiles, words]; x: [M, K] float32 -> [M, N] float32."""
    fmt, fields = layout.fmt, unpack(layout, packed)
    integers, scale = quantise(x)
    if fmt.codebook is not None:
        codes = jnp.asarray(np.array(fmt.codebook, np.int32))[fields.codes]
    else:
        codes = jnp.asarray(fields.codes).astype(jnp.int32) - fmt.offset
    m, groups = x.shape[0], layout.columns // fmt.group
    grouped = integers.reshape(m, groups, fmt.group)
    high, low = grouped >> 8, grouped & 255
    codes = codes.reshape(layout.rows, groups, fmt.group)
    sums = 256 * jnp.einsum("mgi,ngi->mng", high, codes) + jnp.einsum("mgi,ngi->mng", low, codes)
    scale = jnp.repeat(scale, fmt.halves, -1)
    t = sums.astype(jnp.float32) * scale[:, None]
    factor = _by_group(layout, fields.d, fields.scales)
    terms = [factor * t]
    if fmt.min_sign:
        minimum = fmt.min_sign * _by_group(layout, fields.dmin, fields.mins)
        terms.append(minimum * (grouped.sum(-1).astype(jnp.float32) * scale)[:, None])
    plan = Plan(layout, 1)
    whole = plan.passes * plan.group * CHUNK * PAIR // fmt.group
    padded = [jnp.pad(term, ((0, 0), (0, 0), (0, whole - groups))) for term in terms]
    pairs = [term.reshape(m, layout.rows, plan.passes, plan.group, CHUNK, -1) for term in padded]
    partial = jnp.zeros(pairs[0].shape[:-1], jnp.float32)
    for group in range(pairs[0].shape[-1]):
        for term in pairs:
            partial = partial + term[..., group]
    chunks = (partial[..., 0] + partial[..., 1]) + (partial[..., 2] + partial[..., 3])
    values = [chunks[..., i] for i in range(plan.group)]
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    total = values[0][..., 0]
    for turn in range(1, plan.passes):
        total = total + values[0][..., turn]
    return total


def _by_group(layout: Layout, d: Array, integers: Array | None) -> jax.Array:
    """[N, groups] float32: one number a block, times one a group."""
    value = scale_values(d)
    value = jnp.repeat(value, layout.fmt.block // layout.fmt.group, -1)
    return value if integers is None else value * jnp.asarray(integers).astype(jnp.float32)
