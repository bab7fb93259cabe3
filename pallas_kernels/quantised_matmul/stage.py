"""A product inside a kernel: a block streams its tiles, warps multiply chunks as they come, an epilogue ends a phase.

A kernel may have several, one after the other: weights of the next are then asked for while this one's x is awaited.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Mail, Numbers, Sink
from pallas_kernels.quantised_matmul.activations import load, load_norm, norm_factors, quantise
from pallas_kernels.quantised_matmul.epilogue import Outputs, finish, load_addends
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import RUNS, TOKEN_STRIDE, Plan
from pallas_kernels.quantised_matmul.product import Factor, multiply
from pallas_kernels.quantised_matmul.ring import Ring


@dataclass(frozen=True)
class Matrix:
    """i64 addresses of its words, of the norm of its input and of its bias, or of stacks of them."""

    words: Value
    norm: Value | None
    bias: Value | None

    def layer(self, plan: Plan, layer: Value) -> "Matrix":
        """That layer of a stack."""

        def own(stack: Value | None, size: int) -> Value | None:
            return None if stack is None else ln.add(stack, ln.mul(ln.wide(layer), size))

        words = own(self.words, plan.units * plan.unit_tiles * plan.layout.tile_bytes)
        return Matrix(words, own(self.norm, 4 * plan.layout.columns), own(self.bias, 4 * plan.layout.rows))


@dataclass(frozen=True)
class Stage:
    """One product in a block. Steps: ``ring.initialise`` once a kernel, ``ring.start``, then ``run``."""

    plan: Plan
    place: Place
    matrix: Matrix
    ring: Ring

    @classmethod
    def make(cls, plan: Plan, matrix: Matrix, shared: Value, cta: Value) -> "Stage":
        """The only one of its kernel. shared: i32 address of ``plan.shared_bytes``. cta: of the plan's grid."""
        place = Place.make(plan, shared, cta)
        return cls(plan, place, matrix, Ring(plan, place, matrix.words, ln.add(shared, plan.barriers_at)))

    @classmethod
    def repeated(
        cls, plan: Plan, matrix: Matrix, shared: Value, cta: Value, index: int, barriers: Value, round: Value
    ) -> "Stage":
        """Product ``index`` of a kernel, run ``round`` times before with matrices of the same plan. shared: may be
        another address each time. barriers: i32 address of its own ``BARRIER_BYTES``."""
        place = Place.make(plan, shared, cta, index)
        before = ln.mul(round, _chunks(plan, place))
        return cls(plan, place, matrix, Ring(plan, place, matrix.words, barriers, before))

    def run(
        self,
        x: Numbers | Mail,
        residual: Numbers | Mail | None,
        y: Sink,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """y = the plan's product of x [batch, K], by warps that are not idle. meanwhile: done while x is on its way."""
        plan, place, shared = self.plan, self.place, self.place.shared
        bias = None if self.matrix.bias is None else Numbers(self.matrix.bias)
        outputs, norm = Outputs(y, bias, residual), self.matrix.norm

        addends = load_addends(plan, place, ln.integer(0), outputs) if plan.phases == 1 else None
        weights = None if norm is None else load_norm(plan, place, norm, place.chunk(plan, 0))
        # x is asked for first; weights are then on their way while it is being quantised.
        at_once = 2 if plan.turns == 2 and plan.phases == 1 and not plan.norm else 1
        first_runs = load(plan, place, x, [place.chunk(plan, turn) for turn in range(at_once)])
        meanwhile()
        if plan.norm:
            turns = range(0 if plan.slices > 1 else 1, plan.passes)
            others = load(plan, place, x, [ln.add(place.member, turn * plan.group) for turn in turns])
            norm_factors(plan, place, others if plan.slices > 1 else first_runs + others)

        phase_tiles = plan.phase_units * plan.unit_tiles
        all_tiles = ln.mul(place.units, plan.unit_tiles)
        kept = None
        if plan.turns == 1:
            quantise(plan, place, first_runs, weights)
            kept = Factor.load(plan, place, place.chunk(plan, 0))

        def phase(index: Value) -> None:
            first = ln.mul(index, phase_tiles)
            end = ln.least(ln.add(first, phase_tiles), all_tiles)
            first_unit = ln.mul(index, plan.phase_units)
            own_addends = load_addends(plan, place, first_unit, outputs) if addends is None else addends
            buffer = ln.add(shared, plan.partials_at)
            if plan.phases > 1:  # one buffer is written while the other is still being read
                buffer = ln.add(buffer, ln.mul(ln.land(index, 1), plan.partial_bytes))
            mine = ln.add(buffer, ln.mul(place.member, plan.partial_words * 4))

            def tiles(factor: Factor, start: Value, stop: Value, tile_of_first: Value, turn: int) -> None:
                """Chunks start .. stop - 1 of the warp's stream."""
                target = ln.add(mine, turn * plan.group * plan.partial_words * 4)

                def step(n: Value) -> None:
                    results = multiply(factor, place, self.ring.wait(n))
                    tile = ln.add(ln.mul(ln.sub(n, start), plan.teams), tile_of_first)
                    _keep(plan, place, results, ln.add(target, ln.mul(tile, plan.tile_partial_bytes)))
                    ln.warp_barrier()
                    self.ring.request(ln.add(n, plan.stages))

                ln.loop(start, stop, step)

            if kept is not None:
                start = _own(plan, place, first)
                # The team's first tile at or after ``first``, counted from there.
                tile = ln.sub(ln.add(ln.mul(start, plan.teams), place.team), first)
                tiles(kept, start, _own(plan, place, end), tile, 0)
            else:
                count = ln.sub(end, first)
                runs = first_runs if plan.phases == 1 else load(plan, place, x, [place.chunk(plan, 0)])
                each = -(-RUNS * plan.batch // plan.teams)
                for turn in range(plan.turns):
                    chunk = place.chunk(plan, turn)
                    quantise(plan, place, runs[:each], None if norm is None else load_norm(plan, place, norm, chunk))
                    factor, runs = Factor.load(plan, place, chunk), runs[each:]
                    if turn + 1 < plan.turns and not runs:  # it comes while these tiles are being multiplied
                        runs = load(plan, place, x, [place.chunk(plan, turn + 1)])
                    start = ln.add(ln.mul(first, plan.turns), ln.mul(count, turn))
                    stop = ln.select(ln.less(place.team, 1), ln.add(start, count), start)
                    tiles(factor, start, stop, ln.integer(0), turn)
            place.barrier(plan)
            finish(plan, place, buffer, first_unit, outputs, own_addends)

        if plan.phases == 1:
            phase(ln.integer(0))
        else:
            ln.loop(0, ln.div(ln.add(place.units, plan.phase_units - 1), plan.phase_units), phase)


def _own(plan: Plan, place: Place, tiles: Value) -> Value:
    """Of the block's first tiles, how many this warp has, if a block has whole rows at once."""
    before = ln.div(ln.add(ln.sub(tiles, place.team), plan.teams - 1), plan.teams)
    return ln.select(ln.less(place.team, ln.least(tiles, plan.teams)), before, ln.integer(0))


def _chunks(plan: Plan, place: Place) -> Value:
    """In the warp's stream."""
    tiles = ln.mul(place.units, plan.unit_tiles)
    if plan.turns == 1:
        return _own(plan, place, tiles)
    return ln.select(ln.less(place.team, 1), ln.mul(tiles, plan.turns), ln.integer(0))


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
