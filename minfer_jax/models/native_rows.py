"""Sums along rows by the native library: bit for bit the same for a row whatever the others are and however many.

XLA's own take their order from the number of rows.
"""

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.native import RMS_NORM, SUM_EXP
from minfer_jax.native.call import native_call


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """As ``linear.rms_norm``: [..., D] float32, [D] -> [..., D]."""
    (y,) = native_call(RMS_NORM, [jax.ShapeDtypeStruct(x.shape, jnp.float32)], [x, weight], eps=np.float32(eps))
    return y


def sum_exp(x: jax.Array, shift: jax.Array) -> jax.Array:
    """Sum of exp(x - shift) along the last axis: x [N, K] float32, shift [N] -> [N]."""
    (y,) = native_call(SUM_EXP, [jax.ShapeDtypeStruct(shift.shape, jnp.float32)], [x, shift])
    return y
