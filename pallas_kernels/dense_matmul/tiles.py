"""The tiles of ``x @ w.T`` on a Hopper GPU, by tensor cores with float32 sums, which the ops of this folder finish.

One block a multiprocessor goes over the tiles of the result. Its third warpgroup copies pieces of x and of the matrices
into a ring in shared memory; the other two multiply, each half of the tile's rows (after Pallas's own
``ops/gpu/hopper_matmul_mgpu.py``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import mosaic, multiprocessors, why_not_lowerable

Ref = Any

COLUMNS = 128
"""Of a tile, for each matrix."""

_DEPTH = 64  # of K, at a time
_STAGES = 4  # of the ring: 48 KiB each
_WARPGROUPS = 2  # that multiply
_BAND = 8  # tiles side by side that are done before the next rows: what they read stays in the second-level cache


def fits(rows: int, columns: int) -> bool:
    """Whether there are kernels for matrices [rows, columns]: whole tiles."""
    return rows % COLUMNS == 0 and columns % _DEPTH == 0


def tiled_product(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    layer: jax.Array | int | None,
    *,
    rows: int,
    out: jax.ShapeDtypeStruct,
    part: jax.ShapeDtypeStruct,
    finish: Callable[[list[jax.Array], Ref], None],
    place: Callable[[Ref, Any, Any], Ref],
) -> jax.Array:
    """x [M, K] float16 with ``matrices`` [N, K] of one shape, or stacks [L, N, K] of which ``layer`` is used -> out.

    rows: of a warpgroup's tile; M is a multiple of twice that. finish: of the sums [rows, COLUMNS] float32 of each
    matrix to the part of ``out`` that a tile gives, which it writes into shared memory. place: where in out that part
    belongs, from its first row and the number of its block of columns.

    Raises RuntimeError where the kernel cannot be lowered, ValueError for shapes that do not fit each other.
    """
    if (reason := why_not_lowerable()) is not None:
        raise RuntimeError(f"dense_matmul is not available: {reason}")
    M, K = x.shape
    shape = matrices[0].shape
    if any(a.dtype != jnp.float16 for a in (x, *matrices)):
        raise ValueError(f"x and the matrices are {[str(a.dtype) for a in (x, *matrices)]}; they are float16")
    if any(w.shape != shape for w in matrices) or len(shape) != (2 if layer is None else 3) or shape[-1] != K:
        raise ValueError(f"matrices are {[w.shape for w in matrices]}; x takes [N, {K}], in front [L] with layer")
    if M % (_WARPGROUPS * rows) or not fits(shape[-2], K):
        raise ValueError(f"x [{M}, {K}] and a matrix {shape} are not whole tiles")
    pl, plgpu = mosaic("pallas"), mosaic()
    steps, grid = K // _DEPTH, (M // (_WARPGROUPS * rows), shape[-2] // COLUMNS)
    swizzled = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)

    def program(*refs: Ref) -> None:
        index, x_ref, *matrix_refs, out_ref = refs if layer is not None else (None, *refs)
        matrix_refs = [ref if index is None else ref.at[index[0]] for ref in matrix_refs]
        warpgroup = jax.lax.axis_index("warpgroup")

        def pipeline(multiply: Callable[..., Any], around: Callable[..., Any]) -> Any:
            sides = (_WARPGROUPS * rows, *[COLUMNS for _ in matrices])
            return plgpu.emit_pipeline_warp_specialized(
                multiply,
                grid=(steps,),
                memory_registers=40,
                in_specs=[
                    plgpu.BlockSpec((side, _DEPTH), lambda k: (0, k), transforms=swizzled, memory_space=plgpu.SMEM)
                    for side in sides
                ],
                wg_axis="warpgroup",
                num_compute_wgs=_WARPGROUPS,
                max_concurrent_steps=_STAGES,
                compute_context=around,
            )

        def nothing(*_: Any) -> None: ...

        @partial(
            pl.run_scoped,
            ring=pipeline(nothing, nothing).get_allocations(x_ref, *matrix_refs),
            parts=plgpu.SMEM(
                (_WARPGROUPS, *part.shape), part.dtype, transforms=swizzled if part.dtype == jnp.float16 else ()
            ),
            collective_axes="warpgroup",
        )
        def _(ring: Any, parts: Ref) -> None:
            @plgpu.nd_loop((grid[0] * grid[1],), collective_axes="block")
            def _(tile: Any) -> None:
                row, column = plgpu.planar_snake(tile.index[0], grid, 1, _BAND)
                first = row * _WARPGROUPS * rows

                def around(run: Callable[..., Any]) -> None:
                    def with_sums(*sums: Ref) -> None:
                        run(sums)
                        plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the part before this one has left
                        finish([total[...] for total in sums], parts.at[warpgroup])
                        plgpu.commit_smem()
                        plgpu.copy_smem_to_gmem(parts.at[warpgroup], place(out_ref, first + warpgroup * rows, column))

                    pl.run_scoped(with_sums, *[plgpu.ACC((rows, COLUMNS), jnp.float32) for _ in matrices])

                def multiply(_: Any, x_piece: Ref, *pieces_and_sums: Any) -> Any:
                    *pieces, sums = pieces_and_sums
                    for total, piece in zip(sums, pieces, strict=True):
                        plgpu.wgmma(total, x_piece.at[pl.ds(warpgroup * rows, rows)], piece.transpose((1, 0)))
                    plgpu.wgmma_wait(0)
                    return sums

                wanted = [ref.at[pl.ds(column * COLUMNS, COLUMNS), :] for ref in matrix_refs]
                pipeline(multiply, around)(x_ref.at[pl.ds(first, _WARPGROUPS * rows), :], *wanted, allocations=ring)

        plgpu.wait_smem_to_gmem(0)

    program.__name__ = finish.__name__
    call = plgpu.kernel(
        program,
        out_type=out,
        grid=(multiprocessors(),),
        grid_names=("block",),
        num_threads=_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return call(*([] if layer is None else [jnp.asarray(layer, jnp.int32).reshape(1)]), x, *matrices)


def whole_tiles(x: jax.Array, rows: int) -> jax.Array:
    """x with rows of zeros below, so that warpgroups of ``rows`` have whole tiles."""
    return jnp.pad(x, ((0, -len(x) % (_WARPGROUPS * rows)), (0, 0)))
