"""Small host arrays that come back call after call, such as positions: kept where programs read them.

A program waits until its inputs are copied. On an H200 that took some 0.3 ms for three arrays of whatever size, a tenth
of a prompt of 512 tokens in a small model, while what is there already costs nothing.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

_MOST_BYTES = 1 << 18  # of one array: larger ones come back less often, and looking at them takes time


def resident(x: np.ndarray | np.generic) -> np.ndarray | np.generic | jax.Array:
    """x, or an array on the default device that has its values; on a CPU a program reads it where it is."""
    if jax.default_backend() == "cpu" or x.nbytes > _MOST_BYTES:
        return x
    return _put(x.tobytes(), x.dtype.str, x.shape, jax.config.jax_default_device)  # pyright: ignore[reportAttributeAccessIssue]


@lru_cache(64)
def _put(data: bytes, dtype: str, shape: tuple[int, ...], _: object) -> jax.Array:
    return jnp.asarray(np.frombuffer(data, dtype).reshape(shape))
