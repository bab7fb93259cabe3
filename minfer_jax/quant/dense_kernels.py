"""Products of many rows with expanded weights by GPU kernels, where more than the product is done in one."""

import math

import jax
import jax.numpy as jnp

import pallas_kernels.dense_matmul as kernels
from minfer_jax.quant.mixed import Weight
from minfer_jax.quant.narrow import narrow
from minfer_jax.quant.tensor import QuantTensor

_FEWEST_ROWS = 256  # below, the library's products are spread better over the device


def have_kernels(*weights: Weight) -> bool:
    """Whether these matrices are expanded for a GPU that has the kernels, in shapes that they take."""
    return all(w.implementation == "pallas" and kernels.fits(*w.shape) for w in weights)


def can_gate(x: jax.Array, gate: Weight, up: Weight) -> bool:
    """Whether :func:`gated` is for such inputs [..., K]."""
    return math.prod(x.shape[:-1]) >= _FEWEST_ROWS and have_kernels(gate, up)


def gated(x: jax.Array, gate: Weight, up: Weight, activation: str) -> jax.Array:
    """activation(x @ gate.T) * (x @ up.T): x [..., K] float32 -> [..., N] float32, which has been rounded as
    :func:`narrow` does it: the next product's own rounding is then none, and XLA leaves both out."""
    assert isinstance(gate, QuantTensor) and isinstance(up, QuantTensor)  # see can_gate
    rows, factor = narrow(x.reshape(-1, x.shape[-1]), jnp.dtype(jnp.float16))
    values = gate.planes["values"], up.planes["values"]
    h = kernels.gated_matmul(rows, *values, gate.index, activation=activation, factor=factor)
    return (h.astype(jnp.float32) * factor).reshape(*x.shape[:-1], -1)


def log_softmax_at(x: jax.Array, w: QuantTensor, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of the logits ``x @ w.T`` the log-softmax at one column for each row, and the column of the largest: x [M, K]
    float32, targets [M] int32 -> (float32 [M], int32 [M])."""
    rows, factor = narrow(x, jnp.dtype(jnp.float16))
    total, best = kernels.log_sum_exp(rows, w.values(), factor=factor)
    own = (rows.astype(jnp.float32) * w.take(targets)).sum(-1) * factor
    return jnp.minimum(own - total, 0), best  # rounded apart, the two may differ by more than nothing
