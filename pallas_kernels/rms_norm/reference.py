"""The definition of the op, for tests."""

import jax
import jax.numpy as jnp


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float, divisor: float = 1.0, dtype: jax.typing.DTypeLike = jnp.float32
) -> jax.Array:
    """As ``rms_norm.rms_norm``."""
    y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return (y / divisor).astype(dtype)
