"""Linear layers with what stands in front of and behind them, which kernels do in the same call."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models import native_rows
from minfer_jax.quant import Weight, dense_kernels, matmul
from minfer_jax.quant.fragments import Fragments, takes
from minfer_jax.quant.native_matmul import products


def rms_norm(x: jax.Array, weight: jax.Array, eps: float, model: Weight | None = None) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: [..., D], [D] -> [..., D]. model: a weight of the model,
    which tells whether the native library or a GPU kernel does it; None: XLA."""
    if model is not None and model.is_tiled:
        return native_rows.rms_norm(x, weight, eps)
    if model is not None and dense_kernels.have_norm(model, x):
        return dense_kernels.rms_norm(x, weight, eps)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def activate(x: jax.Array, activation: str) -> jax.Array:
    """activation "silu", or "gelu" in its tanh form."""
    return jax.nn.silu(x) if activation == "silu" else jax.nn.gelu(x, approximate=True)


def linear(
    x: jax.Array,
    weights: Sequence[Weight],
    biases: Sequence[jax.Array | None] | None = None,
    *,
    norm: jax.Array | None = None,
    eps: float = 0.0,
    activation: str | None = None,
    residual: jax.Array | None = None,
    positions: jax.Array | None = None,
    joined: Fragments | None = None,
) -> list[jax.Array]:
    """Products of one input with several weights: x [..., K] -> [..., N] for each, plus its bias [N] where it has one.

    norm: weight [K] of an RMSNorm of x, with ``eps``, in front. activation: of two weights, the one result is
    act(x @ first) * (x @ second). residual: [..., N], added to the first result.
    positions: int32 [...]: rows at negative ones are padding, whose results mean nothing.
    joined: the norm and all these weights and biases as one, for GPU kernels.
    """
    biases = list(biases or [None] * len(weights))
    if all(w.is_tiled for w in weights):
        return products(
            x, weights, biases, norm=norm, eps=eps, activation=activation, residual=residual, positions=positions
        )
    if joined is not None and takes(x):
        y = joined.product(x, eps=eps, activation=activation, residual=residual)
        return [y] if activation else jnp.split(y, np.cumsum([w.shape[0] for w in weights[:-1]]), -1)
    if len(weights) == 1 and biases == [None] and norm is None and (own := weights[0].fragments) and takes(x):
        return [own.product(x, residual=residual)]
    if dense_kernels.have_products(weights, x):
        if biases == [None] * len(weights):
            return dense_kernels.products(x, weights, norm=norm, eps=eps, activation=activation, residual=residual)
        results = dense_kernels.products(x, weights, norm=norm, eps=eps)
    else:
        x = x if norm is None else rms_norm(x, norm, eps, weights[0])
        results = [matmul(x, w) for w in weights]
    results = [y if bias is None else y + bias for y, bias in zip(results, biases, strict=True)]
    if activation is not None:
        gate, up = results
        results = [activate(gate, activation) * up]
    if residual is not None:
        results[0] = results[0] + residual
    return results
