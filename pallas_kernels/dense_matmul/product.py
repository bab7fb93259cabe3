"""x @ w.T, with what is added to it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import mosaic
from pallas_kernels.dense_matmul.tiles import Part, Tile, choose, index_of, tiled_product

# Costs, in 0.35 us, as measured on an H200 for shapes of models of 0.5 and 7 billion weights. Of two tiles of one cost
# the first is taken, but for matrices and numbers of rows of which it leaves more empty.
_TILES = (
    Tile(128, 128, (1.86, 29), together=True),
    Tile(128, 128, (1, 12)),
    Tile(128, 64, (0.62, 11)),
    Tile(64, 128, (0.62, 11)),
    Tile(64, 64, (0.45, 9), depth=128),
)


def matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    layer: jax.Array | int | None = None,
    *,
    factor: float = 1.0,
    residual: jax.Array | None = None,
) -> jax.Array:
    """x [M, K] float16 with matrices [N, K] float16, one below the other (each N and K a multiple of 64), or stacks
    [L, N, K] of which ``layer``, an int32 scalar, is used -> [M, sum of N] float32.

    factor: what x has been divided by. residual: [M, sum of N] float32, added to the result.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for shapes that do not fit each other.
    """
    shape = len(x), sum(w.shape[-2] for w in matrices)
    if residual is not None and (residual.shape != shape or residual.dtype != jnp.float32):
        raise ValueError(f"residual is {residual.dtype}{list(residual.shape)}; give float32{list(shape)}")
    return _matmul(x, list(matrices), index_of(layer), residual, factor)


@partial(jax.jit, static_argnums=4)
def _matmul(
    x: jax.Array, matrices: list[jax.Array], layer: jax.Array | None, residual: jax.Array | None, factor: float
) -> jax.Array:
    def product(sums: list[jax.Array], out: Any, part: Part, more: Sequence[Any]) -> None:
        pl, plgpu = mosaic("pallas"), mosaic()
        (total,) = sums
        here = pl.ds(part.row, tile.rows), pl.ds(part.column, tile.columns)
        total = total * factor
        out.at[here][...] = total + plgpu.load(more[0].at[here], optimized=False) if more else total

    M, N = len(x), sum(w.shape[-2] for w in matrices)
    tile = choose(M, matrices, _TILES)
    more = [] if residual is None else [jnp.pad(residual, ((0, -M % tile.block_rows), (0, 0)))]
    out = lambda rows: jax.ShapeDtypeStruct((rows, N), jnp.float32)  # noqa: E731
    return tiled_product(x, [matrices], layer, tile, out=out, finish=product, more=more)[:M]
