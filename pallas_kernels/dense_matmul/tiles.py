"""The tiles of ``x @ w.T`` on a Hopper GPU, by tensor cores with float32 sums, which the ops of this folder finish.

One block a multiprocessor goes over the tiles of the result. Its third warpgroup copies pieces of x and of the matrices
into a ring in shared memory, without a stop from one tile to the next; the other two multiply.

A sum takes the columns of x in their order, whatever the tile: neither the tile's size nor the number of rows changes a
bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.compat import mosaic, multiprocessors, why_not_lowerable

Ref = Any

_DEPTH = 64  # that K is a multiple of
_WARPGROUPS = 2  # that multiply
_BAND = 8  # tiles side by side that are done before the next rows: what they read stays in the second-level cache
_SHARED_BYTES = 225 * 1024
_MOST_STAGES = 8
_REGISTERS = 40, 232  # of a thread that copies, and of one that multiplies


@dataclass(frozen=True)
class Tile:
    """rows, columns: of the part of the result that a warpgroup makes at a time. together: the two have a tile of twice
    the rows; else each has its own, and finishes it while the other multiplies. cost: the time that a multiprocessor
    takes for 64 of K, and for what then remains, in comparison with others. depth: of K that is copied at a time, if K
    is whole pieces of that: small tiles do little with a piece."""

    rows: int
    columns: int
    cost: tuple[float, float] = (1, 0)
    together: bool = False
    depth: int = _DEPTH

    @property
    def block_rows(self) -> int:
        """That come into shared memory together."""
        return self.rows * (_WARPGROUPS if self.together else 1)

    def divides(self, columns: int) -> bool:
        return columns % self.columns == 0


@dataclass(frozen=True)
class Part:
    """A warpgroup's part of the result: its first row and column, and shared memory for it, or None."""

    row: Any
    column: Any
    shared: Ref


def fits(rows: int, columns: int, multiple: int = 64) -> bool:
    """Whether a matrix [rows, columns] is whole tiles, each for ``multiple`` of its rows."""
    return rows % multiple == 0 and columns % _DEPTH == 0


def choose(rows: int, matrices: Sequence[jax.Array], tiles: Sequence[Tile]) -> Tile:
    """The tile that is cheapest for x with so many rows and matrices [.., N, K], one below the other: the last of
    ``tiles`` where none fits."""

    def cost(tile: Tile) -> float:
        count = -(-rows // tile.block_rows) * (sum(w.shape[-2] for w in matrices) // tile.columns)
        piece, rest = tile.cost
        return -(-count // multiprocessors()) * (piece * matrices[0].shape[-1] / _DEPTH + rest)

    fitting = [tile for tile in tiles if all(tile.divides(w.shape[-2]) for w in matrices)]
    return min(fitting or tiles[-1:], key=cost)


def index_of(layer: jax.Array | int | None) -> jax.Array | None:
    """As ops give it to their jitted inner function: calls of a program for whatever layer then share one kernel."""
    return None if layer is None else jnp.asarray(layer, jnp.int32).reshape(1)


def tiled_product(
    x: jax.Array,
    matrices: Sequence[Sequence[jax.Array]],
    layer: jax.Array | None,
    tile: Tile,
    *,
    out: Callable[[int], jax.ShapeDtypeStruct],
    finish: Callable[[list[jax.Array], Ref, Part, Sequence[Ref]], None],
    more: Sequence[jax.Array] = (),
    shared: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """x [M, K] float16 with each of ``matrices``, which is one [N, K] float16 or several, one below the other, or
    stacks [L, N, K] of which ``layer`` (int32 [1]) is used -> out(M), with M rounded up to whole tiles.

    finish: writes into out what becomes of a warpgroup's sums [rows, columns] float32, one for each of ``matrices``.
    more: arrays that it reads. shared: the dtype of a part that it has in shared memory.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for shapes that do not fit each other.
    """
    if (reason := why_not_lowerable()) is not None:
        raise RuntimeError(f"dense_matmul is not available: {reason}")
    N = _check(x, matrices, layer, tile)
    pl, plgpu = mosaic("pallas"), mosaic()
    x = jnp.pad(x, ((0, -len(x) % tile.block_rows), (0, 0)))
    M, K = x.shape
    depth = tile.depth if K % tile.depth == 0 else _DEPTH
    steps, grid = K // depth, (M // tile.block_rows, N // tile.columns)
    blocks, count = multiprocessors(), grid[0] * grid[1]
    sides = (tile.block_rows, *[tile.columns for _ in matrices])
    part_bytes = 0 if shared is None else _WARPGROUPS * tile.rows * tile.columns * jnp.dtype(shared).itemsize
    stages = min(_MOST_STAGES, (_SHARED_BYTES - part_bytes) // (sum(sides) * depth * 2))
    swizzled = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    flat = [w for stack in matrices for w in stack]

    def program(*refs: Ref) -> None:
        rest = list(refs)
        index = None if layer is None else rest.pop(0)
        x_ref, *rest = rest
        own = iter(ref if index is None else ref.at[index[0]] for ref in rest[: len(flat)])
        stacks = [[next(own) for _ in stack] for stack in matrices]
        more_refs, out_ref = rest[len(flat) : -1], rest[-1]
        warpgroup, block = (jax.lax.axis_index(name) for name in ("warpgroup", "block"))
        tiles = (count - block + blocks - 1) // blocks  # of this block

        def place(i: Any) -> tuple[Any, Any]:
            """First row and column of the block's tile i."""
            row, column = plgpu.planar_snake(block + i * blocks, grid, 1, _BAND)
            return row * tile.block_rows, column * tile.columns

        # All that is counted has 32 bits, also where JAX is set to 64.
        def every(times: Any, body: Callable[[Any], None]) -> None:
            last = np.int32(times) if isinstance(times, int) else times
            jax.lax.fori_loop(np.int32(0), last, lambda i, _: body(i), None)

        def slot_of(n: Any) -> Any:
            return jax.lax.rem(n, np.int32(stages))

        def copy(ring: Sequence[Ref], full: Ref, free: Ref) -> None:
            def one(i: Any) -> None:
                row, column = place(i)

                def step(k: Any) -> None:
                    n = i * steps + k
                    slot, here = slot_of(n), pl.ds(k * depth, depth)
                    pl.when(n >= stages)(lambda: plgpu.barrier_wait(free.at[slot]))
                    arrived = full.at[slot if tile.together else jax.lax.rem(i, np.int32(_WARPGROUPS)) * stages + slot]
                    wanted = x_ref.at[pl.ds(row, tile.block_rows), here]
                    plgpu.copy_gmem_to_smem(wanted, ring[0].at[slot], arrived)
                    for stack, target in zip(stacks, ring[1:], strict=True):
                        first = 0
                        for ref in stack:
                            end = first + ref.shape[0]
                            wanted = ref.at[pl.ds(column - first, tile.columns), here]
                            start = lambda a=wanted, b=target: plgpu.copy_gmem_to_smem(a, b.at[slot], arrived)  # noqa: E731
                            is_here = (column >= first) & (column < end)
                            start() if len(stack) == 1 else pl.when(is_here)(start)
                            first = end

                every(steps, step)

            every(tiles, one)

        def multiply(ring: Sequence[Ref], full: Ref, free: Ref, part: Ref | None) -> None:
            def one(turn: Any) -> None:
                i = turn if tile.together else _WARPGROUPS * turn + warpgroup
                row, column = place(i)
                offset = warpgroup * tile.rows if tile.together else 0

                def with_sums(*sums: Ref) -> list[jax.Array]:
                    def step(k: Any) -> None:
                        n = i * steps + k
                        slot = slot_of(n)
                        plgpu.barrier_wait(full.at[slot if tile.together else warpgroup * stages + slot])
                        for total, piece in zip(sums, ring[1:], strict=True):
                            rows = ring[0].at[slot].at[pl.ds(offset, tile.rows)]
                            plgpu.wgmma(total, rows, piece.at[slot].transpose((1, 0)))
                        plgpu.wgmma_wait(len(sums))  # those of the piece before are done
                        before = slot_of(n + stages - 1)
                        pl.when(k > 0)(lambda: plgpu.barrier_arrive(free.at[before]))

                    every(steps, step)
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(free.at[slot_of(i * steps + steps - 1)])
                    return [total[...] for total in sums]

                acc = plgpu.ACC((tile.rows, tile.columns), jnp.float32)
                sums = pl.run_scoped(with_sums, *[acc for _ in matrices])
                finish(
                    sums, out_ref, Part(row + offset, column, None if part is None else part.at[warpgroup]), more_refs
                )

            every(tiles if tile.together else (tiles - warpgroup + 1) // _WARPGROUPS, one)
            if part is not None:
                plgpu.wait_smem_to_gmem(0)

        def scoped(ring: Sequence[Ref], full: Ref, free: Ref, part: Ref | None) -> None:
            @pl.when(warpgroup == _WARPGROUPS)
            def _() -> None:
                plgpu.set_max_registers(_REGISTERS[0], action="decrease")
                copy(ring, full, free)

            @pl.when(warpgroup < _WARPGROUPS)
            def _() -> None:
                plgpu.set_max_registers(_REGISTERS[1], action="increase")
                multiply(ring, full, free, part)

        shape = (_WARPGROUPS, tile.rows, tile.columns)
        pl.run_scoped(
            scoped,
            ring=[plgpu.SMEM((stages, side, depth), jnp.float16, transforms=swizzled) for side in sides],
            # Who has tiles of his own waits for pieces of those alone.
            full=plgpu.Barrier(num_arrivals=len(sides), num_barriers=stages * (1 if tile.together else _WARPGROUPS)),
            free=plgpu.Barrier(num_arrivals=_WARPGROUPS if tile.together else 1, num_barriers=stages),
            part=None if shared is None else plgpu.SMEM(shape, shared, transforms=swizzled),
            collective_axes="warpgroup",
        )

    program.__name__ = finish.__name__
    call = plgpu.kernel(
        program,
        out_type=out(M),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return call(*([] if layer is None else [layer]), x, *flat, *more)


def _check(x: jax.Array, matrices: Sequence[Sequence[jax.Array]], layer: jax.Array | None, tile: Tile) -> int:
    """The number N of rows of each of the matrices."""
    flat = [w for stack in matrices for w in stack]
    K = x.shape[1]
    if any(a.dtype != jnp.float16 for a in (x, *flat)):
        raise ValueError(f"x and the matrices are {[str(a.dtype) for a in (x, *flat)]}; they are float16")
    dims = 2 if layer is None else 3
    rows = {sum(w.shape[-2] for w in stack) for stack in matrices}
    if any(w.ndim != dims or w.shape[-1] != K for w in flat) or len(rows) != 1:
        raise ValueError(f"matrices are {[w.shape for w in flat]}; x takes [N, {K}], in front [L] with layer")
    if K % _DEPTH or not all(tile.divides(w.shape[-2]) for w in flat):
        raise ValueError(f"x {list(x.shape)} and matrices {[w.shape for w in flat]} are not whole tiles")
    return rows.pop()
