"""The blocks that every architecture shares. All activations are float32."""

import jax
import jax.numpy as jnp

from minfer_jax.models.config import Config
from minfer_jax.models.linear import linear, rms_norm
from minfer_jax.models.params import Layer
from minfer_jax.quant import Weight
from minfer_jax.quant.fragments import takes


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """cap * tanh(x / cap); a cap of 0 is none."""
    return cap * jnp.tanh(x / cap) if cap else x


def project_qkv(
    layer: Layer, config: Config, x: jax.Array, positions: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Residual stream [B, T, D] -> q [B, T, n_heads, head_dim], k and v [B, T, n_kv_heads, head_dim].

    positions: [B, T] int32, negative for padding, whose rows mean nothing; None: there is none.
    """
    weights, biases = (layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)
    qkv = linear(x, weights, biases, norm=layer.attn_norm, eps=config.rms_eps, positions=positions, joined=layer.qkv)
    q, k, v = (y.reshape(*x.shape[:2], -1, config.head_dim) for y in qkv)
    return q, k, v


def project_heads(layer: Layer, config: Config, x: jax.Array) -> jax.Array:
    """As :func:`project_qkv`, all heads in one array: [B, T, n_heads + 2 n_kv_heads, head_dim]."""
    if layer.qkv is None or not takes(x):
        return jnp.concatenate(project_qkv(layer, config, x), 2)
    y = layer.qkv.product(x, eps=config.rms_eps)
    return y.reshape(*x.shape[:2], -1, config.head_dim)


def add_projection(
    x: jax.Array,
    h: jax.Array,
    weight: Weight,
    bias: jax.Array | None,
    post_norm: jax.Array | None,
    config: Config,
    positions: jax.Array | None,
) -> jax.Array:
    """x [..., D] plus the projection of h [..., K], normed first where the architecture does so."""
    if post_norm is None:
        return linear(h, [weight], [bias], residual=x, positions=positions)[0]
    (y,) = linear(h, [weight], [bias], positions=positions)
    return x + rms_norm(y, post_norm, config.rms_eps, weight)


def feed_forward(layer: Layer, config: Config, x: jax.Array, positions: jax.Array | None = None) -> jax.Array:
    """Residual plus gated FFN, on any leading shape: [..., D] -> [..., D]; positions as in :func:`project_qkv`."""
    weights, biases = (layer.gate, layer.up), (layer.gate_bias, layer.up_bias)
    norm = {"norm": layer.ffn_norm, "eps": config.rms_eps}
    (h,) = linear(x, weights, biases, **norm, activation=config.activation, positions=positions, joined=layer.gate_up)
    return add_projection(x, h, layer.down, layer.down_bias, layer.ffn_post_norm, config, positions)
