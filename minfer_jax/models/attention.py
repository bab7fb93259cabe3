"""Attention of one layer by XLA: from projected queries, keys and values to the heads' outputs, through the cache.

``native_attention.py`` does the same in one native call.
"""

import math

import jax
import jax.numpy as jnp

from minfer_jax.models.blocks import soft_cap
from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.flash_attention import can_flash, flash_attention
from minfer_jax.models.linear import rms_norm
from minfer_jax.models.params import Layer
from minfer_jax.models.rope import rotate

_MOST_SCORES = 1 << 25  # attention scores that exist at a time: 128 MiB


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
    aligned: bool = False,
) -> tuple[jax.Array, KVCache | None]:
    """Queries and keys normed where the layer does so and rotated, keys and values written into layer ``index`` of the
    cache, and attention: ([B, T, n_heads * head_dim], cache).

    q [B, T, n_heads, head_dim], k and v [B, T, n_kv_heads, head_dim] float32; cos, sin [B, T, dim / 2] float32;
    positions [B, T] and window (scalar) int32, see :func:`attention`. aligned: see ``forward.hidden_states``.
    """
    q, k = _norm_and_rotate(layer, config, q, k, cos, sin)
    if cache is None:
        keys, values, key_positions = k.swapaxes(1, 2), v.swapaxes(1, 2), positions
    else:
        cache = _write(cache, index, positions, k, v)
        keys, values = cache.k[index], cache.v[index]
        key_positions = jnp.broadcast_to(jnp.arange(cache.length, dtype=jnp.int32), (len(positions), cache.length))
    dtype = layer.q.input_dtype
    if can_flash(config, q.shape[1], dtype):
        causal = aligned and cache is None and not any(config.windows)
        mask = None if causal else visible(positions, key_positions, window)
        return flash_attention(config, q, keys, values, mask, dtype), cache
    return attention(config, q, keys, values, positions, key_positions, window), cache


def _norm_and_rotate(
    layer: Layer, config: Config, q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array]:
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, config.rms_eps, layer.q)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, config.rms_eps, layer.k)
    return rotate(q, cos, sin), rotate(k, cos, sin)


def _write(cache: KVCache, index: jax.Array | int, positions: jax.Array, k: jax.Array, v: jax.Array) -> KVCache:
    """Keys and values [B, T, n_kv_heads, head_dim] into their slots; padding falls outside and is dropped."""
    rows = jnp.arange(positions.shape[0], dtype=jnp.int32)[:, None]
    slots = jnp.where(positions < 0, cache.length, positions)
    return KVCache(
        cache.k.at[index, rows, :, slots].set(k.astype(cache.k.dtype), mode="drop"),
        cache.v.at[index, rows, :, slots].set(v.astype(cache.v.dtype), mode="drop"),
    )


def attention(
    config: Config,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    query_positions: jax.Array,
    key_positions: jax.Array,
    window: jax.Array,
) -> jax.Array:
    """Causal grouped-query attention: q [B, T, n_heads, head_dim], k and v [B, n_kv_heads, S, head_dim] ->
    [B, T, n_heads * head_dim].

    query_positions [B, T], key_positions [B, S] int32, negative for padding. A query sees keys at 0 <= k <= q, and
    within ``window`` positions (scalar int32, itself included) where that is not 0. A padding query attends to
    nothing in particular and its row means nothing; it is finite all the same.
    """
    B, T, H, D = q.shape
    n_kv = k.shape[1]

    def block(args: tuple[jax.Array, jax.Array]) -> jax.Array:
        q, positions = args  # [B, t, H, D], [B, t]
        grouped = q.reshape(B, q.shape[1], n_kv, H // n_kv, D)
        scores = jnp.einsum("btkgd,bksd->bkgts", grouped, k.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        scores = soft_cap(scores * config.attention_scale, config.attention_softcap)
        seen = visible(positions, key_positions, window)[:, None, None]
        weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(jnp.float32).min), -1)
        out = jnp.einsum("bkgts,bksd->btkgd", weights, v.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        return out.reshape(B, q.shape[1], H * D)

    t = _query_chunk(T, B * H * k.shape[2])
    if t == T:
        return block((q, query_positions))
    chunks = (
        jnp.moveaxis(q.reshape(B, T // t, t, H, D), 1, 0),
        jnp.moveaxis(query_positions.reshape(B, T // t, t), 1, 0),
    )
    return jnp.moveaxis(jax.lax.map(block, chunks), 0, 1).reshape(B, T, H * D)


def visible(positions: jax.Array, key_positions: jax.Array, window: jax.Array) -> jax.Array:
    """Which keys a query sees, as :func:`attention` says: bool [B, T, S]."""
    reach = jnp.where(window > 0, window, jnp.iinfo(jnp.int32).max)
    back = positions[:, :, None] - key_positions[:, None, :]
    return (back >= 0) & (back < reach) & (key_positions >= 0)[:, None, :]


def _query_chunk(n: int, scores_per_query: int) -> int:
    """How many of n queries attend at a time: the largest power of two that divides n and fits, or all that fit."""
    most = max(1, _MOST_SCORES // max(1, scores_per_query))
    return n if n <= most else math.gcd(n, 1 << (most.bit_length() - 1))
