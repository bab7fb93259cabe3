"""The definition of the op: products and attention as their own packages define them, layer by layer."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.decode_attention.reference import reference as attention
from pallas_kernels.decode_layers import Layers, Matrix
from pallas_kernels.quantised_matmul.reference import quantised_matmul


def reference(
    x: jax.Array,
    layers: Layers,
    cos: jax.Array,
    sin: jax.Array,
    tables: jax.Array,
    windows: jax.Array,
    position: jax.Array,
    cache_k: jax.Array,
    cache_v: jax.Array,
    first: jax.Array | int,
    *,
    activation: str,
    eps: float,
    scale: float,
    product: Any = quantised_matmul,
    attend: Any = attention,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As ``decode_layers``. product, attend: what stands for ``quantised_matmul`` and ``decode_attention``."""

    def times(m: Matrix, i: int, x: jax.Array, **options: Any) -> jax.Array:
        return product(m.layout, m.words, x, layer=jnp.int32(i), norm=m.norm, bias=m.bias, eps=eps, **options)

    dim = cache_k.shape[-1]
    for i in range(layers.o.words.shape[0]):
        qkv = jnp.concatenate([times(m, i, x) for m in layers.qkv], -1).reshape(1, -1, dim)
        norms = None if layers.q_norm is None or layers.k_norm is None else (layers.q_norm[i], layers.k_norm[i])
        turns, where = (r[tables[i]][None] for r in (cos, sin)), (position, windows[i])
        h, cache_k, cache_v = attend(
            qkv, *turns, *where, cache_k, cache_v, jnp.int32(first + i), scale=scale, norms=norms, eps=eps
        )
        x = times(layers.o, i, h, residual=x)
        x = times(layers.down, i, times(layers.gate_up, i, x, gate=activation), residual=x)
    return x, cache_k, cache_v
