"""Random matrices of a format, for tests and benchmarks."""

import jax
import jax.numpy as jnp

from pallas_kernels.quantised_matmul.layout import Fields, Layout


def random_fields(layout: Layout, key: jax.Array, lead: tuple[int, ...] = ()) -> Fields:
    """Every code and every scale of the format, weights of a size that keeps products near 1; may be traced."""
    fmt, (n, k) = layout.fmt, (layout.rows, layout.columns)
    keys = jax.random.split(key, 5)
    codes = jax.random.bits(keys[0], (*lead, n, k), jnp.uint8) >> (8 - fmt.bits)
    groups, blocks = (*lead, n, k // fmt.group), (*lead, n, k // fmt.block)
    bits = 4 if fmt.bits == 2 else 6
    integers = [jax.random.bits(i, groups, jnp.uint8) >> (8 - bits) for i in keys[1:3]]
    scales = integers[0]
    if fmt.signed_scales:
        scales = scales.astype(jnp.int8) - 32
    reach = max(abs(v) for v in fmt.codebook) if fmt.codebook else 1 << (fmt.bits - 1)
    size = 2 / (reach * (1 << (bits - 1) if fmt.has_scales else 1) * k**0.5)
    d, dmin = (jax.random.uniform(i, blocks, minval=-size, maxval=size) for i in keys[3:])
    if fmt.exponent_scale:
        d = (jnp.round(jnp.log2(jnp.abs(d) + 1e-6)) + 128).astype(jnp.uint8)
    else:
        d = d.astype(jnp.float16)
    return Fields(
        codes.view(jnp.int8) if fmt.bits == 8 else codes,
        d,
        scales if fmt.has_scales else None,
        (reach * dmin).astype(jnp.float16) if fmt.min_sign else None,
        integers[1] if fmt.has_scales and fmt.min_sign else None,
    )
