"""Attention of one decode step: every row has one new token, which sees what is in the cache and itself.

One kernel norms and rotates the new query and key, writes key and value into the cache where it lies, and attends.
"""

import jax
import jax.numpy as jnp

from pallas_kernels.decode_attention.kernel import SPLIT, Plan, joining, kernel

__all__ = ["decode_attention", "serves"]


def serves(head_dim: int) -> bool:
    """Whether there is a kernel for heads of that size."""
    return head_dim in (64, 128, 256)


def decode_attention(
    qkv: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    positions: jax.Array,
    window: jax.Array,
    cache_k: jax.Array,
    cache_v: jax.Array,
    layer: jax.Array,
    *,
    scale: float,
    norms: tuple[jax.Array, jax.Array] | None = None,
    eps: float = 0.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(out [B, H * D] float32, cache_k, cache_v), the caches with the new keys and values.

    qkv: [B, H + 2 KV, D] float32, queries, keys and values as projected; H is a multiple of KV. cos, sin: [B, half]
    float32; pairs (i, i + half) are rotated. norms: weights [D] of an RMSNorm of each head of q, and of k, in front,
    with ``eps``. scale: of the scores. positions: [B] int32, of the new token in its row; at S and beyond it is neither
    written nor seen; -1: the row has none, its output is zeros and its cache stays. window: int32 scalar, how many
    positions are seen, the own one included; 0: all. cache_k, cache_v: [L, B, KV, S, D] float32, of which ``layer``
    (int32 scalar) is used; jit with both donated, or they are copied.

    A row's result has the same bits whatever B and S are.
    """
    B, heads, D = qkv.shape
    kv, length = cache_k.shape[2:4]
    H = heads - 2 * kv
    splits = -(-length // SPLIT)
    plan = Plan(B, H, kv, D, cos.shape[-1], length, splits, float(scale), None if norms is None else float(eps))
    keys, values = jax.new_ref(cache_k), jax.new_ref(cache_v)
    scalars = jnp.stack([jnp.asarray(x, jnp.int32) for x in (layer, window)])
    parts = kernel(plan)(qkv, cos, sin, positions, scalars, *(norms or ()), keys, values)
    out = parts if splits == 1 else joining(plan)(parts)
    return out.reshape(B, H * D), keys[...], values[...]
