"""RMSNorm of rows (arXiv 1910.07467), whose bits depend on the row alone."""

import jax
import jax.numpy as jnp

from pallas_kernels.compat import why_not_lowerable
from pallas_kernels.rms_norm.kernel import kernel

__all__ = ["rms_norm"]


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float, divisor: float = 1.0, dtype: jax.typing.DTypeLike = jnp.float32
) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * weight / divisor over the last axis: [M, K], [K] float32 -> [M, K] of ``dtype``,
    which is float32 or float16. K is a multiple of 4. divisor: a power of two.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for other shapes or dtypes.
    """
    if (reason := why_not_lowerable()) is not None:
        raise RuntimeError(f"rms_norm is not available: {reason}")
    if jnp.dtype(dtype) not in (jnp.float32, jnp.float16):
        raise ValueError(f"dtype is {jnp.dtype(dtype).name}; give float32 or float16")
    if (
        x.ndim != 2
        or weight.shape != x.shape[1:]
        or x.shape[1] % 4
        or {x.dtype, weight.dtype} != {jnp.dtype("float32")}
    ):
        raise ValueError(f"x is {x.dtype}{list(x.shape)}, weight {weight.dtype}{list(weight.shape)}; see rms_norm")
    return kernel(*x.shape, float(eps), 1 / divisor, jnp.dtype(dtype))(x, weight)
