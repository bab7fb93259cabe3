"""activation(x @ gate.T) * (x @ up.T), the first half of a gated feed-forward layer (arXiv 2002.05202)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import mosaic
from pallas_kernels.dense_matmul.tiles import Part, Tile, choose, index_of, tiled_product

_TILES = Tile(64, 128, (2.06, 3), together=True), Tile(64, 64, (0.65, 3), depth=128)  # costs: see product.py


def gated_matmul(
    x: jax.Array,
    gate: jax.Array,
    up: jax.Array,
    layer: jax.Array | int | None = None,
    *,
    activation: str,
    factor: float = 1.0,
) -> jax.Array:
    """x [M, K] float16, gate and up [N, K] float16 (N and K multiples of 64), or stacks [L, N, K] of which ``layer``,
    an int32 scalar, is used -> [M, N] float16.

    activation: "silu", or "gelu" in its tanh form. factor: what x, and the result, have been divided by. All but x, the
    weights and the result is float32.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for shapes that do not fit each other.
    """
    return _gated(x, gate, up, index_of(layer), activation, factor)


@partial(jax.jit, static_argnums=(4, 5))
def _gated(
    x: jax.Array, gate: jax.Array, up: jax.Array, layer: jax.Array | None, activation: str, factor: float
) -> jax.Array:
    def gated(sums: list[jax.Array], out: Any, part: Part, _: Sequence[Any]) -> None:
        pl, plgpu = mosaic("pallas"), mosaic()
        g, u = sums
        g = g * factor
        h = (g / (1 + jnp.exp(-_slope(g, activation))) * u).astype(jnp.float16)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the part before this one has left
        part.shared[...] = h
        plgpu.commit_smem()
        here = pl.ds(part.row, tile.rows), pl.ds(part.column, tile.columns)
        plgpu.copy_smem_to_gmem(part.shared, out.at[here])

    M, N = len(x), gate.shape[-2]
    tile = choose(M, [gate], _TILES)
    out = lambda rows: jax.ShapeDtypeStruct((rows, N), jnp.float16)  # noqa: E731
    return tiled_product(x, [[gate], [up]], layer, tile, out=out, finish=gated, shared=jnp.float16)[:M]


def _slope(g: jax.Array, activation: str) -> jax.Array:
    """Both activations are g * sigmoid of this: 1 + tanh(z) is 2 sigmoid(2 z)."""
    return g if activation == "silu" else 1.5957691216057308 * (g + 0.044715 * g * g * g)
