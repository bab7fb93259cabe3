"""log(sum(exp(x @ w.T))) along the rows, and the largest of each, without the logits in memory."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import mosaic
from pallas_kernels.dense_matmul.tiles import COLUMNS, tiled_product, whole_tiles

_ROWS = 128


def log_sum_exp(x: jax.Array, w: jax.Array, *, factor: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """x [M, K] float16, w [N, K] float16 (N a multiple of 128, K of 64) -> (float32 [M], int32 [M]): of the logits
    ``factor * x @ w.T`` of each row log(sum(exp)), and the column of the largest, the lowest of equal ones.

    The kernel gives a maximum, a sum and a place for each block of columns (online log-sum-exp, arXiv 1805.02867). A
    row with a logit that is not finite gives NaN.
    """

    def log_sums(sums: list[jax.Array], part: Any) -> None:
        (z,) = sums
        top = z.max(1)
        wide = jax.lax.broadcast_in_dim(top, z.shape, [0])
        from_the_end = (COLUMNS - jax.lax.broadcasted_iota(jnp.int32, z.shape, 1)).astype(jnp.float32)
        part[0] = top * factor
        part[1] = jnp.exp2((z - wide) * (factor * math.log2(math.e))).sum(1)
        part[2] = jnp.where(z == wide, from_the_end, 0.0).max(1)

    M, ds = len(x), mosaic("pallas").ds
    x = whole_tiles(x, _ROWS)
    blocks = tiled_product(
        x,
        [w],
        None,
        rows=_ROWS,
        out=jax.ShapeDtypeStruct((len(w) // COLUMNS, 3, len(x)), jnp.float32),
        part=jax.ShapeDtypeStruct((3, _ROWS), jnp.float32),
        finish=log_sums,
        place=lambda out, row, block: out.at[block, :, ds(row, _ROWS)],
    )
    tops, totals, places = blocks.swapaxes(0, 1)[:, :, :M]
    peak, best = tops.max(0), tops.argmax(0)
    column = (best + 1) * COLUMNS - jnp.take_along_axis(places, best[None], 0)[0].astype(jnp.int32)
    return peak + jnp.log((totals * jnp.exp(tops - peak)).sum(0)), column.astype(jnp.int32)
