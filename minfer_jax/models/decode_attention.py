"""Attention of a decode step on a GPU: one kernel of ``pallas_kernels`` for a layer, which writes into the cache."""

import jax
import jax.numpy as jnp

from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.params import Layer
from pallas_kernels import decode_attention


def serves(layer: Layer, config: Config, x: jax.Array, cache: KVCache | None) -> bool:
    """Whether there is a kernel for it: one query in a row of x [B, T, D], a cache in float32, no soft cap, norms of
    both q and k or of none."""
    is_step = x.shape[1] == 1 and cache is not None and cache.k.dtype == jnp.float32
    is_fit = not config.attention_softcap and decode_attention.serves(config.head_dim)
    both_or_none = (layer.q_norm is None) == (layer.k_norm is None)
    return is_step and is_fit and both_or_none and layer.q.implementation == "pallas"


def attend(
    config: Config,
    layer: Layer,
    heads: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    positions: jax.Array,
    window: jax.Array | int,
    cache: KVCache | None,
    index: jax.Array | int,
) -> tuple[jax.Array, KVCache]:
    """As ``attention.attend`` for T = 1, from ``blocks.project_heads``; the output of a padding token is zeros."""
    assert cache is not None  # see serves
    norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
    h, keys, values = decode_attention.decode_attention(
        heads[:, 0],
        cos[:, 0],
        sin[:, 0],
        positions[:, 0],
        jnp.int32(window),
        cache.k,
        cache.v,
        jnp.int32(index),
        scale=config.attention_scale,
        norms=norms,
        eps=config.rms_eps,
    )
    return h[:, None], KVCache(keys, values)
