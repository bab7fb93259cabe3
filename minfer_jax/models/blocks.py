"""The blocks that every architecture shares. All activations are float32."""

import math

import jax
import jax.numpy as jnp

from minfer_jax.models.config import Config
from minfer_jax.models.linear import linear, rms_norm
from minfer_jax.models.params import Layer
from minfer_jax.models.rope import rotate
from minfer_jax.quant import QuantTensor

_MOST_SCORES = 1 << 25  # attention scores that exist at a time: 128 MiB


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """cap * tanh(x / cap); a cap of 0 is none."""
    return cap * jnp.tanh(x / cap) if cap else x


def project_qkv(layer: Layer, config: Config, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Residual stream [B, T, D] -> q [B, T, n_heads, head_dim], k and v [B, T, n_kv_heads, head_dim]."""
    weights, biases = (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
    qkv = linear(x, weights, biases, norm=layer.attn_norm, eps=config.rms_eps)
    q, k, v = (y.reshape(*x.shape[:2], -1, config.head_dim) for y in qkv)
    return q, k, v


def place(
    layer: Layer, config: Config, q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys [B, T, heads, head_dim], normed where the layer does so and rotated to their positions."""
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, config.rms_eps)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, config.rms_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin)


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
    reach = jnp.where(window > 0, window, jnp.iinfo(jnp.int32).max)

    def block(args: tuple[jax.Array, jax.Array]) -> jax.Array:
        q, positions = args  # [B, t, H, D], [B, t]
        grouped = q.reshape(B, q.shape[1], n_kv, H // n_kv, D)
        scores = jnp.einsum("btkgd,bksd->bkgts", grouped, k.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        scores = soft_cap(scores * config.attention_scale, config.attention_softcap)
        back = positions[:, :, None] - key_positions[:, None, :]  # [B, t, S]
        visible = (back >= 0) & (back < reach) & (key_positions >= 0)[:, None, :]
        weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, jnp.finfo(jnp.float32).min), -1)
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


def _query_chunk(n: int, scores_per_query: int) -> int:
    """How many of n queries attend at a time: the largest power of two that divides n and fits, or all that fit."""
    most = max(1, _MOST_SCORES // max(1, scores_per_query))
    return n if n <= most else math.gcd(n, 1 << (most.bit_length() - 1))


def add_projection(
    x: jax.Array,
    h: jax.Array,
    weight: QuantTensor,
    bias: jax.Array | None,
    post_norm: jax.Array | None,
    config: Config,
) -> jax.Array:
    """x [..., D] plus the projection of h [..., K], normed first where the architecture does so."""
    if post_norm is None:
        return linear(h, [weight], [bias], residual=x)[0]
    return x + rms_norm(linear(h, [weight], [bias])[0], post_norm, config.rms_eps)


def feed_forward(layer: Layer, config: Config, x: jax.Array) -> jax.Array:
    """Residual plus gated FFN, on any leading shape: [..., D] -> [..., D]."""
    weights, biases = (layer.gate, layer.up), (layer.gate_bias, layer.up_bias)
    (h,) = linear(x, weights, biases, norm=layer.ffn_norm, eps=config.rms_eps, activation=config.activation)
    return add_projection(x, h, layer.down, layer.down_bias, layer.ffn_post_norm, config)
