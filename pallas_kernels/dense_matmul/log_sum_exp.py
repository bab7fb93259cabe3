"""log(sum(exp(x @ w.T))) along the rows, and the largest of each, without the logits in memory."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.compat import mosaic
from pallas_kernels.dense_matmul.tiles import Part, Tile, tiled_product

_TILE = Tile(128, 128, together=True)


def log_sum_exp(x: jax.Array, w: jax.Array, *, factor: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """x [M, K] float16, w [N, K] float16 (N a multiple of 128, K of 64) -> (float32 [M], int32 [M]): of the logits
    ``factor * x @ w.T`` of each row log(sum(exp)), and the column of the largest, the lowest of equal ones.

    The kernel gives a maximum, a sum and a place for each block of columns (online log-sum-exp, arXiv 1805.02867). A
    row with a logit of NaN or infinity, or an x that is not finite, gives NaN. Its bits do not depend on other rows.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for shapes that do not fit each other.
    """
    pl, columns = mosaic("pallas"), _TILE.columns

    def log_sums(sums: list[jax.Array], out: Any, part: Part, _: Sequence[Any]) -> None:
        (z,) = sums
        top = z.max(1)
        wide = jax.lax.broadcast_in_dim(top, z.shape, [0])
        from_the_end = (columns - jax.lax.broadcasted_iota(jnp.int32, z.shape, 1)).astype(jnp.float32)
        here = out.at[jax.lax.div(part.column, np.int32(columns)), :, pl.ds(part.row, _TILE.rows)]
        here[0] = top * factor
        here[1] = jnp.exp2((z - wide) * (factor * math.log2(math.e))).sum(1)
        here[2] = jnp.where(z == wide, from_the_end, 0.0).max(1)

    M, blocks = len(x), len(w) // columns
    out = lambda rows: jax.ShapeDtypeStruct((blocks, 3, rows), jnp.float32)  # noqa: E731
    parts = tiled_product(x, [[w]], None, _TILE, out=out, finish=log_sums)
    tops, totals, places = parts.swapaxes(0, 1)[:, :, :M]
    peak, best = tops.max(0), tops.argmax(0)
    column = (best + 1) * columns - jnp.take_along_axis(places, best[None], 0)[0].astype(jnp.int32)
    # Made before they are added: compiled as one, a product may be rounded together with a sum, or not.
    shares = jax.lax.optimization_barrier(totals * jnp.exp(tops - peak))
    return peak + jnp.log(ordered_sum(shares, 0)), column.astype(jnp.int32)


def ordered_sum(x: jax.Array, axis: int) -> jax.Array:
    """Sums over an axis in an order that its length alone decides: of halves, element by element. The sum of a library
    may be cut up by the other axes' lengths, too."""
    size = x.shape[axis]
    width = 1 << (size - 1).bit_length()
    x = jnp.pad(x, [(0, width - size) if i == axis else (0, 0) for i in range(x.ndim)])
    while width > 1:
        width //= 2
        x = jax.lax.slice_in_dim(x, 0, width, axis=axis) + jax.lax.slice_in_dim(x, width, 2 * width, axis=axis)
    return x.squeeze(axis)
