"""Many rows on a GPU that has kernels for it: norms, and products with expanded weights and what follows them.

The bits of a row depend neither on the other rows nor on their number.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

import pallas_kernels.dense_matmul as kernels
from minfer_jax.quant.fragments import is_step
from minfer_jax.quant.mixed import Weight
from minfer_jax.quant.narrow import FACTOR, narrow
from minfer_jax.quant.tensor import QuantTensor
from pallas_kernels import rms_norm as norms

_HALF = jnp.dtype(jnp.float16)


def have_norm(weight: Weight, x: jax.Array) -> bool:
    """Whether norms of x [..., K] in a model with such weights have a kernel."""
    return weight.implementation == "pallas" and x.size > 0 and x.shape[-1] % 4 == 0


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """As ``models.linear.rms_norm``."""
    return norms.rms_norm(x.reshape(-1, x.shape[-1]), weight, eps=eps).reshape(x.shape)


def have_products(weights: Sequence[Weight], x: jax.Array) -> bool:
    """Whether products of x [..., K] with these matrices have a kernel: those of prompts and scores. Of a decode step
    [B, 1, K] what packed weights are not for is left to the library, which is faster with that few rows."""
    return (
        not is_step(x) and x.size > 0 and all(w.implementation == "pallas" and kernels.fits(*w.shape) for w in weights)
    )


def have_log_softmax(weight: Weight) -> bool:
    """Whether :func:`log_softmax_at` is for a head."""
    return weight.implementation == "pallas" and kernels.fits(*weight.shape, multiple=128)


def products(
    x: jax.Array,
    weights: Sequence[Weight],
    *,
    norm: jax.Array | None = None,
    eps: float = 0.0,
    activation: str | None = None,
    residual: jax.Array | None = None,
) -> list[jax.Array]:
    """As ``models.linear.linear`` without biases, for prompts and scores."""
    rows, factor = _input(x, norm, eps)
    stack, index = [_values(w) for w in weights], _index(weights[0])
    is_added = activation is None and len(weights) == 1
    if activation is not None:
        gate, up = stack
        h = kernels.gated_matmul(rows, gate, up, index, activation=activation, factor=factor)
        # It was rounded as the next product's input would be: that is then no rounding, and XLA leaves both out.
        results = [h.astype(jnp.float32) * factor]
    else:
        added = residual.reshape(len(rows), -1) if residual is not None and is_added else None
        y = kernels.matmul(rows, stack, index, factor=factor, residual=added)
        ends = [sum(w.shape[0] for w in weights[: i + 1]) for i in range(len(weights) - 1)]
        results = jnp.split(y, ends, -1)
    results = [y.reshape(*x.shape[:-1], -1) for y in results]
    if residual is not None and not is_added:
        results[0] = results[0] + residual
    return results


def _input(x: jax.Array, norm: jax.Array | None, eps: float) -> tuple[jax.Array, float]:
    """x [..., K], normed if there is a weight for that, as rows [M, K] float16 in the manner of :func:`narrow`."""
    rows = x.reshape(-1, x.shape[-1])
    if norm is None:
        return narrow(rows, _HALF)
    return norms.rms_norm(rows, norm, eps=eps, divisor=FACTOR, dtype=_HALF), FACTOR


def log_softmax_at(x: jax.Array, w: QuantTensor, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the logits ``x @ w.T`` the log-softmax at one column for each row, and the column of the largest: x [M, K]
    float32, targets [M] int32 -> (float32 [M], int32 [M])."""
    rows, factor = narrow(x, _HALF)
    total, best = kernels.log_sum_exp(rows, w.values(), factor=factor)
    # Products of two float16 are exact in float32, however they are compiled; their sum has one order.
    own = kernels.ordered_sum(rows.astype(jnp.float32) * w.take(targets), 1) * factor
    return jnp.minimum(own - total, 0), best  # sums in different orders: the difference may be a little above 0


def _values(w: Weight) -> jax.Array:
    """[N, K], or a stack of which ``_index`` tells one."""
    assert isinstance(w, QuantTensor)  # weights for "pallas" are
    return w.planes["values"]


def _index(w: Weight) -> jax.Array | int | None:
    assert isinstance(w, QuantTensor)
    return w.index
