"""Sums along rows by the native library: bit for bit the same for a row whatever the others are and however many.

XLA's own take their order from the number of rows, and its exponentials and logarithms round differently at the end of
a short vector.
"""

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.native import ADD_EXP, RMS_NORM
from minfer_jax.native.call import native_call


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """As ``linear.rms_norm``: [..., D] float32, [D] -> [..., D]."""
    (y,) = native_call(RMS_NORM, [jax.ShapeDtypeStruct(x.shape, jnp.float32)], [x, weight], eps=np.float32(eps))
    return y


def add_exp(x: jax.Array, peak: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-sum-exp along the last axis as it grows: x [N, K] float32, taken into the largest value so far and the sum of
    exp(value - that), [N] each -> (peak, total, log(total))."""
    one = jax.ShapeDtypeStruct(peak.shape, jnp.float32)
    peak, total, log_total = native_call(ADD_EXP, [one] * 3, [x, peak, total])
    return peak, total, log_total
