"""The kernel: a block streams its tiles, warps multiply chunks as they come, an epilogue ends each phase."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.activations import load, load_norm, norm_factors, quantise
from pallas_kernels.quantised_matmul.epilogue import Outputs, finish
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import TOKEN_STRIDE, WARPS, Plan
from pallas_kernels.quantised_matmul.product import Factor, multiply
from pallas_kernels.quantised_matmul.ring import Ring


@cache
def kernel(plan: Plan) -> Any:
    """The product of that plan as one jitted function, so that all its calls share one compiled kernel.

    Takes words [tiles, tile words] uint32 and x [batch, K] float32, then, as the plan says, layer [1] int32 (words,
    norm and bias have an axis more in front), norm [K], bias [N], residual [batch, N] float32. Gives ``plan.out_shape``
    float32.
    """
    names = ["words", "x"] + [name for name in ("layer", "norm", "bias", "residual") if getattr(plan, name)]

    def quantised_matmul(*refs: Value) -> None:
        *inputs, y, shared = refs
        addresses = {name: ln.global_address(ref) for name, ref in zip(names, inputs, strict=True)}
        _program(plan, addresses, ln.global_address(y), ln.shared_address(shared))

    return jax.jit(
        lane_kernel(
            quantised_matmul,
            jax.ShapeDtypeStruct(plan.out_shape, jnp.float32),
            ctas=plan.grid,
            warpgroups=WARPS // 4,
            shared_bytes=plan.shared_bytes,
        )
    )


def _program(plan: Plan, inputs: dict[str, Value], y: Value, shared: Value) -> None:
    layout, place = plan.layout, Place.make(plan, shared)
    layer = ln.load_index(inputs["layer"]) if plan.layer else None

    def own_of(name: str, count: int) -> Value | None:
        """Where the layer's numbers begin, in a stack with ``count`` for each layer."""
        stack = inputs.get(name)
        return stack if layer is None or stack is None else ln.add(stack, ln.mul(ln.wide(layer), 4 * count))

    x, norm, bias = inputs["x"], own_of("norm", layout.columns), own_of("bias", layout.rows)

    # x is asked for first; weights are then on their way while it is being quantised.
    first_runs = load(plan, place, x, place.chunk(plan, 0))
    weights = None if norm is None else load_norm(plan, place, norm, place.chunk(plan, 0))
    words = inputs["words"]
    if layer is not None:
        words = ln.add(words, ln.mul(ln.wide(layer), plan.units * plan.unit_tiles * layout.tile_bytes))
    ring = Ring(plan, place, words)
    ring.start()
    if plan.norm:
        chunks = [ln.add(place.member, turn * plan.group) for turn in range(0 if plan.slices > 1 else 1, plan.passes)]
        others = [run for chunk in chunks for run in load(plan, place, x, chunk)]
        norm_factors(plan, place, others if plan.slices > 1 else first_runs + others)

    outputs = Outputs(y, bias, inputs.get("residual"))
    phase_tiles = plan.phase_units * plan.unit_tiles
    all_tiles = ln.mul(place.units, plan.unit_tiles)

    def own(tiles: Value) -> Value:
        """Of the block's first tiles, how many this warp has."""
        before = ln.div(ln.add(ln.sub(tiles, place.team), plan.teams - 1), plan.teams)
        return ln.select(ln.less(place.team, ln.least(tiles, plan.teams)), before, ln.integer(0))

    kept = None
    if plan.turns == 1:
        quantise(plan, place, first_runs, weights)
        kept = Factor.load(plan, place, place.chunk(plan, 0))

    def phase(index: Value) -> None:
        first = ln.mul(index, phase_tiles)
        end = ln.least(ln.add(first, phase_tiles), all_tiles)
        buffer = ln.add(shared, plan.partials_at)
        if plan.phases > 1:  # one buffer is written while the other is still being read
            buffer = ln.add(buffer, ln.mul(ln.land(index, 1), plan.partial_bytes))
        mine = ln.add(buffer, ln.mul(place.member, plan.partial_words * 4))

        def tiles(factor: Factor, start: Value, stop: Value, tile_of_first: Value, turn: int) -> None:
            """Chunks start .. stop - 1 of the warp's stream."""
            target = ln.add(mine, turn * plan.group * plan.partial_words * 4)

            def step(n: Value) -> None:
                results = multiply(factor, place, ring.wait(n))
                tile = ln.add(ln.mul(ln.sub(n, start), plan.teams), tile_of_first)
                _keep(plan, place, results, ln.add(target, ln.mul(tile, plan.tile_partial_bytes)))
                ln.warp_barrier()
                ring.request(ln.add(n, plan.stages))

            ln.loop(start, stop, step)

        if kept is not None:
            start = own(first)
            # The team's first tile at or after ``first``, counted from there.
            tile = ln.sub(ln.add(ln.mul(start, plan.teams), place.team), first)
            tiles(kept, start, own(end), tile, 0)
        else:
            count = ln.sub(end, first)
            runs = first_runs if plan.phases == 1 else load(plan, place, x, place.chunk(plan, 0))
            for turn in range(plan.turns):
                chunk = place.chunk(plan, turn)
                quantise(plan, place, runs, None if norm is None else load_norm(plan, place, norm, chunk))
                factor = Factor.load(plan, place, chunk)
                if turn + 1 < plan.turns:  # the next x comes while these tiles are being multiplied
                    runs = load(plan, place, x, place.chunk(plan, turn + 1))
                start = ln.add(ln.mul(first, plan.turns), ln.mul(count, turn))
                stop = ln.select(ln.less(place.team, 1), ln.add(start, count), start)
                tiles(factor, start, stop, ln.integer(0), turn)
        ln.barrier()
        finish(plan, place, buffer, ln.mul(index, plan.phase_units), outputs)

    if plan.phases == 1:
        phase(ln.integer(0))
    else:
        ln.loop(0, ln.div(ln.add(place.units, plan.phase_units - 1), plan.phase_units), phase)


def _keep(plan: Plan, place: Place, results: list[Value], target: Value) -> None:
    """A chunk's results to shared memory."""
    g, t = ln.shift_right(place.lane, 2), ln.land(place.lane, 3)
    if plan.batch == 1:
        target, places, owner = ln.add(target, ln.mul(g, 4)), [0, 32], ln.equal(t, 0)
    else:
        target = ln.add(target, ln.add(ln.mul(t, 2 * TOKEN_STRIDE * 4), ln.mul(g, 4)))
        places, owner = [0, TOKEN_STRIDE * 4, 32, TOKEN_STRIDE * 4 + 32], ln.less(ln.mul(t, 2), plan.batch)
    with ln.when(owner):
        for at, value in zip(places, results, strict=True):
            ln.store_shared(target, value, at=at)
