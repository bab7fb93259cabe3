"""The oracle: dequantise, then multiply, in plain jax.numpy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.quantised_matmul.formats import Format
from pallas_kernels.quantised_matmul.layout import Fields, Layout, unpack

Array = Any  # numpy or JAX array


def dequantise(fmt: Format, f: Fields) -> jax.Array:
    """[..., N, K] float32; every product is exact in float32."""
    if fmt.codebook is not None:
        value = jnp.asarray(np.array(fmt.codebook, np.float32))[f.codes]
    else:
        value = jnp.asarray(f.codes).astype(jnp.float32) - fmt.offset
    scale = scale_values(f.d)
    if f.scales is not None:
        scale = jnp.repeat(scale, fmt.block // fmt.group, -1) * jnp.asarray(f.scales).astype(jnp.float32)
    weight = value * jnp.repeat(scale, value.shape[-1] // scale.shape[-1], -1)
    if fmt.min_sign:
        low = fmt.min_sign * jnp.asarray(f.dmin).astype(jnp.float32)
        if f.mins is not None:
            low = jnp.repeat(low, fmt.block // fmt.group, -1) * jnp.asarray(f.mins).astype(jnp.float32)
        weight = weight + jnp.repeat(low, value.shape[-1] // low.shape[-1], -1)
    return weight


def scale_values(d: Array) -> jax.Array:
    """d (or dmin) as float32; an MX exponent e as half of 2**(e - 127), by bits, since codebook values are doubled."""
    if d.dtype != np.uint8:
        return jnp.asarray(d).astype(jnp.float32)
    e = jnp.asarray(d).astype(jnp.uint32)
    return jnp.where(e < 2, jnp.uint32(0x00200000) << e, (e - 1) << 23).view(jnp.float32)


def weights(layout: Layout, packed: Array) -> jax.Array:
    """The matrix [..., N, K] float32 of packed words."""
    return dequantise(layout.fmt, unpack(layout, packed))


def rms_norm(x: Array, weight: Array, eps: float) -> jax.Array:
    """x: [..., K] float32."""
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def activate(name: str, gate: Array) -> jax.Array:
    """ "silu", or "gelu" in its tanh form."""
    return jax.nn.silu(gate) if name == "silu" else jax.nn.gelu(gate, approximate=True)


def quantised_matmul(
    layout: Layout,
    packed: Array,
    x: Array,
    *,
    layer: Array | None = None,
    norm: Array | None = None,
    eps: float = 1e-6,
    gate: str | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
) -> jax.Array:
    """What the kernel of that name computes, with its arguments; see there. Float32 products at full precision."""
    if layer is not None:
        packed, norm, bias = (None if stack is None else stack[layer] for stack in (packed, norm, bias))
    if norm is not None:
        x = rms_norm(x, norm, eps)
    mats = [packed[0::2], packed[1::2]] if gate else [packed]
    y, *up = [jnp.dot(x, weights(layout, m).T, precision=jax.lax.Precision.HIGHEST) for m in mats]
    if gate:
        y = activate(gate, y) * up[0]
    if bias is not None:
        y = y + bias
    return y if residual is None else y + residual
