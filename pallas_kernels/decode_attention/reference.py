"""The definition of the op, for tests."""

import jax
import jax.numpy as jnp


def reference(
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
    """As ``decode_attention``, step by step."""
    kv, length = cache_k.shape[2:4]
    q, k, v = jnp.split(qkv, (qkv.shape[1] - 2 * kv, qkv.shape[1] - kv), 1)
    if norms is not None:
        q, k = (_norm(x, weight, eps) for x, weight in zip((q, k), norms, strict=True))
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    B, H, D = q.shape
    rows, slots = jnp.arange(B), jnp.where(positions < 0, length, positions)
    cache_k = cache_k.at[layer, rows, :, slots].set(k, mode="drop")
    cache_v = cache_v.at[layer, rows, :, slots].set(v, mode="drop")
    keys, values = cache_k[layer], cache_v[layer]  # [B, KV, S, D]
    back = positions[:, None] - jnp.arange(length)
    seen = (back >= 0) & ((window == 0) | (back < window))
    scores = jnp.einsum("bkgd,bksd->bkgs", q.reshape(B, kv, H // kv, D), keys, precision="highest") * scale
    weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf), -1)
    out = jnp.einsum("bkgs,bksd->bkgd", weights, values, precision="highest").reshape(B, H * D)
    return jnp.where(seen.any(1)[:, None], out, 0), cache_k, cache_v


def _norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Pairs (i, i + half) of the first 2 * half numbers of each head."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
