"""The KV cache: a pytree whose slot s of a row holds position s of that row's sequence."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.models.config import Config


@dataclass(frozen=True, repr=False)
class KVCache:
    """k, v: [n_layers, B, n_kv_heads, length, head_dim], float32 or bfloat16.

    Since a slot is a position, ragged rows need no lengths: a query at position p sees slots 0..p of its own row, and
    writing goes wherever ``positions`` says. Start a new sequence in a row by writing from position 0 again.
    """

    k: jax.Array
    v: jax.Array

    @property
    def length(self) -> int:
        """Positions that each row has room for."""
        return self.k.shape[3]

    def __repr__(self) -> str:
        return f"KVCache({self.k.shape[1]} rows of {self.length} positions, {self.k.dtype.name})"


jax.tree_util.register_dataclass(KVCache, ["k", "v"], [])


def init_cache(config: Config, batch: int, length: int, dtype: jax.typing.DTypeLike = jnp.float32) -> KVCache:
    """An empty cache for ``batch`` rows of up to ``length`` positions; dtype float32 or bfloat16 (half the memory).
    A program is compiled for each length: use few, such as powers of two.

    Raises ArgumentError for a number below 1, or another dtype: float16 cannot hold the keys of every model.
    """
    batch, length = check_integer("batch", batch, 1), check_integer("length", length, 1)
    name = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    if name not in ("float32", "bfloat16"):
        raise ArgumentError(f"the cache's dtype is {name}; choose float32 or bfloat16")
    shape = (config.n_layers, batch, config.n_kv_heads, length, config.head_dim)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
