"""Work along rows by the native library: bit for bit the same for a row whatever the others are and however many.

XLA's own sums take their order from the number of rows, and its exponentials and logarithms round differently at the
end of a short vector.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.native import ADD_LOGITS, RMS_NORM
from minfer_jax.native.call import native_call


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """As ``linear.rms_norm``: [..., D] float32, [D] -> [..., D]."""
    (y,) = native_call(RMS_NORM, [jax.ShapeDtypeStruct(x.shape, jnp.float32)], [x, weight], eps=np.float32(eps))
    return y


Sums = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Of the logits of N rows so far, [N] each: the largest, the sum of exp(logit - that), its logarithm, all float32, and
the first token that has the largest, int32."""


def add_logits(z: jax.Array, sums: Sums, span: tuple[Any, Any, Any]) -> Sums:
    """The sums with more logits taken in: columns begin .. end of z [N, K] float32, which are of token ``first``
    and those after it; span: (begin, end, first)."""
    peak, total, _, best = sums
    results = [*[jax.ShapeDtypeStruct(peak.shape, jnp.float32)] * 3, jax.ShapeDtypeStruct(best.shape, jnp.int32)]
    peak, total, log_total, best = native_call(
        ADD_LOGITS, results, [z, peak, total, best, jnp.stack([jnp.int32(place) for place in span])]
    )
    return peak, total, log_total, best
