"""The blocks that every architecture shares. All activations are float32; only matmul knows weight formats."""

import math

import jax
import jax.numpy as jnp

from minfer_jax.models.config import Config
from minfer_jax.models.params import Layer
from minfer_jax.models.rope import rotate
from minfer_jax.quant import QuantTensor, matmul

_MOST_SCORES = 1 << 25  # attention scores that exist at a time: 128 MiB


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: [..., D], [D] -> [..., D]."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def linear(x: jax.Array, weight: QuantTensor, bias: jax.Array | None = None) -> jax.Array:
    """x [..., K] -> [..., N]."""
    y = matmul(x, weight)
    return y if bias is None else y + bias


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """cap * tanh(x / cap); a cap of 0 is none."""
    return cap * jnp.tanh(x / cap) if cap else x


def project_qkv(
    layer: Layer, config: Config, x: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normed input [B, T, D] -> q [B, T, n_heads, head_dim], k and v [B, T, n_kv_heads, head_dim], rotated."""
    B, T, _ = x.shape
    q = linear(x, layer.q, layer.q_bias).reshape(B, T, config.n_heads, config.head_dim)
    k = linear(x, layer.k, layer.k_bias).reshape(B, T, config.n_kv_heads, config.head_dim)
    v = linear(x, layer.v, layer.v_bias).reshape(B, T, config.n_kv_heads, config.head_dim)
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, config.rms_eps)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, config.rms_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


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


def feed_forward(layer: Layer, config: Config, x: jax.Array) -> jax.Array:
    """Residual plus gated FFN, on any leading shape: [..., D] -> [..., D]."""
    h = rms_norm(x, layer.ffn_norm, config.rms_eps)
    gate = linear(h, layer.gate, layer.gate_bias)
    gate = jax.nn.silu(gate) if config.activation == "silu" else jax.nn.gelu(gate, approximate=True)
    y = linear(gate * linear(h, layer.up, layer.up_bias), layer.down, layer.down_bias)
    if layer.ffn_post_norm is not None:
        y = rms_norm(y, layer.ffn_post_norm, config.rms_eps)
    return x + y
