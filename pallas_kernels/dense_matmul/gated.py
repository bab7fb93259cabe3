"""activation(x @ gate.T) * (x @ up.T), the first half of a gated feed-forward layer (arXiv 2002.05202)."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import mosaic
from pallas_kernels.dense_matmul.tiles import COLUMNS, tiled_product, whole_tiles

_ROWS = 64


def gated_matmul(
    x: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    layer: jax.Array | int | None = None,
    *,
    activation: str,
    factor: float = 1.0,
) -> jax.Array:
    """x [M, K] float16, gate and up [N, K] float16 (N a multiple of 128, K of 64), or stacks [L, N, K] of which
    ``layer``, an int32 scalar, is used -> [M, N] float16.

    activation: "silu", or "gelu" in its tanh form. factor: what x, and the result, have been divided by. All but x, the
    weights and the result is float32.
    """

    def gated(sums: list[jax.Array], part: Any) -> None:
        g, u = sums
        g = g * factor
        part[...] = (g / (1 + jnp.exp(-_slope(g, activation))) * u).astype(jnp.float16)

    M, ds = len(x), mosaic("pallas").ds
    x = whole_tiles(x, _ROWS)
    h = tiled_product(
        x,
        [gate, up],
        layer,
        rows=_ROWS,
        out=jax.ShapeDtypeStruct((len(x), gate.shape[-2]), jnp.float16),
        part=jax.ShapeDtypeStruct((_ROWS, COLUMNS), jnp.float16),
        finish=gated,
        place=lambda out, row, block: out.at[ds(row, _ROWS), ds(block * COLUMNS, COLUMNS)],
    )
    return h[:M]


def _slope(g: jax.Array, activation: str) -> jax.Array:
    """Both activations are g * sigmoid of this: 1 + tanh(z) is 2 sigmoid(2 z)."""
    return g if activation == "silu" else 1.5957691216057308 * (g + 0.044715 * g * g * g)
