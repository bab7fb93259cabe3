"""Float32 numbers as 16-bit floats for the tensor cores of a GPU."""

import jax
import jax.numpy as jnp

FACTOR = 2.0**6
"""That numbers are divided by on their way to float16."""


def narrow(x: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, float]:
    """x rounded to ``dtype``, and the power of two that it has to be multiplied by to be x again.

    float16 ends at 65504, which activations of some models exceed, and loses bits below 2^-14. Divided by 64, numbers
    up to 4 million fit, and what is smaller than 2^-8 is rounded to a multiple of 2^-18. Beyond that comes infinity,
    which scoring and generation check their results for.
    """
    if dtype != jnp.float16:
        return x.astype(dtype), 1.0
    return (x * (1 / FACTOR)).astype(dtype), FACTOR
