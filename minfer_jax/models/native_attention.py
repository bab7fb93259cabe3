"""Attention by the native library: one custom call for a layer, which writes into the cache where it lies."""

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.params import Layer
from minfer_jax.native import ATTENTION
from minfer_jax.native.call import native_call


def attend(
    config: Config,
    layer: Layer,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    positions: jax.Array,
    window: jax.Array,
    cache: KVCache | None,
    index: jax.Array | int,
    until: jax.Array | None = None,
) -> tuple[jax.Array, KVCache | None]:
    """Norms of a head, rotation, writing into layer ``index`` of the cache, and attention: ([B, T, n_heads * head_dim],
    cache). As ``attention.attend``, but bit for bit the same for a token whatever B, T and the cache's length.

    q [B, T, n_heads, head_dim], k and v [B, T, n_kv_heads, head_dim] float32: products with their biases. cos, sin
    [B, T, dim / 2] float32; positions [B, T] and window (scalar) int32. The output of a padding token is zeros.
    until: int32 [B, T], see ``forward.hidden_states``.
    """
    none = jnp.zeros(0, jnp.float32)
    norms = (none if norm is None else norm for norm in (layer.q_norm, layer.k_norm))
    until = jnp.zeros(0, jnp.int32) if until is None else until
    operands = [q, k, v, cos, sin, positions, until, window, *norms]
    stored = (k, v)
    if cache is not None:
        operands += [cache.k, cache.v, jnp.asarray(index, jnp.int32)]
        stored = (cache.k, cache.v)
    first = 1 if cache is None else 10
    shapes = [jax.ShapeDtypeStruct((*q.shape[:2], config.n_heads * config.head_dim), jnp.float32)]
    out, *stored = native_call(
        ATTENTION,
        shapes + [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in stored],
        operands,
        aliases={first: 1, first + 1: 2},
        eps=np.float32(config.rms_eps),
        scale=np.float32(config.attention_scale),
        softcap=np.float32(config.attention_softcap),
    )
    return out, None if cache is None else KVCache(*stored)
