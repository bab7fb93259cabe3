"""The definitions of the ops, for tests."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    layer: jax.Array | int | None = None,
    *,
    factor: float = 1.0,
    residual: jax.Array | None = None,
) -> jax.Array:
    """As ``dense_matmul.matmul``."""
    y = _product(x, jnp.concatenate([w if layer is None else w[layer] for w in matrices])) * factor
    return y if residual is None else y + residual


def gated_matmul(
    x: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    layer: jax.Array | int | None = None,
    *,
    activation: str,
    factor: float = 1.0,
) -> jax.Array:
    """As ``dense_matmul.gated_matmul``."""
    act = jax.nn.silu if activation == "silu" else jax.nn.gelu
    g, u = (_product(x, w if layer is None else w[layer]) for w in (gate, up))
    return (act(g * factor) * u).astype(jnp.float16)


def log_sum_exp(x: jax.Array, w: jax.Array, *, factor: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """As ``dense_matmul.log_sum_exp``."""
    z = _product(x, w) * factor
    return jax.nn.logsumexp(z, 1), z.argmax(1).astype(jnp.int32)


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.matmul(x.astype(jnp.float32), w.astype(jnp.float32).T, precision="highest")
