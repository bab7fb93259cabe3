"""The kernel: a warp for each row, which it reads twice, the second time from a cache."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Numbers

_WARPS = 8
_RUN = 128  # columns that a warp reads at once, four in a lane


@cache
def kernel(rows: int, columns: int, eps: float, factor: float, dtype: jnp.dtype) -> Any:
    """x [rows, columns], weight [columns] float32 -> the normed rows times factor, [rows, columns] of ``dtype``."""

    def rms_norm(x: Value, weight: Value, out: Value, _: Value) -> None:
        x, weight = (Numbers(ln.global_address(ref)) for ref in (x, weight))
        out = ln.global_address(out)
        lane, warp = ln.land(ln.thread(), 31), ln.warp_of(ln.thread())
        row = ln.add(ln.mul(ln.cta(), _WARPS), warp)
        first = ln.mul(ln.wide(row), columns)
        row_of_x = Numbers(ln.add(x.address, ln.mul(first, 4)))
        row_of_out = ln.add(out, ln.mul(first, dtype.itemsize))

        def here(run: Value) -> tuple[Value, Value]:
            """The lane's columns of a run: the first of the four, and whether the row has them."""
            column = ln.add(ln.mul(run, _RUN), ln.mul(lane, 4))
            return column, ln.less(column, columns)

        def add(run: Value, state: list[Value]) -> list[Value]:
            (squares,) = state
            for value in row_of_x.load([here(run)], 4)[0]:
                squares = ln.fma(value, value, squares)
            return [squares]

        def write(run: Value) -> None:
            column, is_there = here(run)
            values, weights = (numbers.load([(column, is_there)], 4)[0] for numbers in (row_of_x, weight))
            normed = [ln.fmul(ln.fmul(v, scale), w) for v, w in zip(values, weights, strict=True)]
            if factor != 1:
                normed = [ln.fmul(v, ln.real(factor)) for v in normed]
            words = [ln.as_int(v) for v in normed]
            if dtype == jnp.float16:
                words = [ln.as_halves(*normed[:2]), ln.as_halves(*normed[2:])]
            with ln.when(is_there):
                ln.store_global(ln.offset(row_of_out, ln.mul(column, dtype.itemsize)), *words)

        with ln.when(ln.less(row, rows)):
            runs = -(-columns // _RUN)
            (squares,) = ln.carried_loop(0, runs, [ln.real(0.0)], add)
            for distance in (1, 2, 4, 8, 16):
                squares = ln.fadd(squares, ln.neighbour(squares, distance))
            mean = ln.fma(squares, ln.real(1 / columns), ln.real(eps))
            scale = ln.reciprocal(ln.root(mean))
            ln.loop(0, runs, write)

    return jax.jit(
        lane_kernel(
            rms_norm,
            jax.ShapeDtypeStruct((rows, columns), dtype),
            ctas=-(-rows // _WARPS),
            warpgroups=_WARPS // 4,
            shared_bytes=16,
        )
    )
