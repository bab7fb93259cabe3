"""Weights on their way: each warp has its own ring of chunks, filled by the copy engine, and waits for nobody else."""

from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import Plan


@dataclass
class Ring:
    """The stream of chunks of one warp, numbered in the order in which it multiplies them.

    weights: i64 address of the matrix. barriers: i32 address of ``WARPS * DEPTH`` words of 64 bits. before: chunks of
    other matrices that went through this ring earlier.
    """

    plan: Plan
    place: Place
    weights: Value
    barriers: Value
    before: Value | int = 0

    def initialise(self) -> None:
        """Its barriers, once."""
        with ln.when(ln.equal(self.place.lane, 0)):
            for stage in range(self.plan.stages):
                ln.init_transfer_barrier(self._barrier(ln.integer(stage)))
            ln.fence_transfer_barriers()
        ln.warp_barrier()

    def start(self) -> None:
        """Ask for the first chunks."""
        for n in range(self.plan.stages):
            self.request(ln.integer(n))

    def request(self, n: Value) -> None:
        """Start the copy of chunk n, if there is one, into the place of chunk n - stages, which all lanes have read."""
        plan, layout, place = self.plan, self.plan.layout, self.place
        tile, chunk, inside = self._find(n)
        unit = ln.div(tile, plan.unit_tiles) if plan.unit_tiles > 1 else tile
        unit_of_all = ln.add(ln.mul(unit, plan.stride), place.cta)
        tile = ln.add(ln.sub(tile, ln.mul(unit, plan.unit_tiles)), ln.mul(unit_of_all, plan.unit_tiles))
        offset = ln.add(ln.mul(ln.wide(tile), layout.tile_bytes), ln.wide(ln.mul(chunk, layout.chunk_bytes)))
        size = ln.integer(layout.chunk_bytes)
        if layout.last_chunk_bytes != layout.chunk_bytes:
            size = ln.select(ln.equal(chunk, layout.chunks - 1), ln.integer(layout.last_chunk_bytes), size)
        if plan.passes * plan.group != layout.chunks:
            size = ln.select(ln.less(chunk, layout.chunks), size, ln.integer(0))
        stage = ln.rem(ln.add(n, self.before), plan.stages)
        issue = ln.both(inside, ln.equal(place.lane, 0))
        ln.start_copy(issue, self._barrier(stage), self._slot(stage), ln.add(self.weights, offset), size)

    def wait(self, n: Value) -> Value:
        """Shared address of chunk n, once it is there."""
        n = ln.add(n, self.before)
        stage = ln.rem(n, self.plan.stages)
        ln.await_copy(self._barrier(stage), ln.land(ln.div(n, self.plan.stages), 1))
        return self._slot(stage)

    def _find(self, n: Value) -> tuple[Value, Value, Value]:
        """(tile of the block, chunk of the row, whether there is such a chunk) of chunk n of the stream."""
        plan, place = self.plan, self.place
        tiles = ln.mul(place.units, plan.unit_tiles)
        if plan.turns == 1:
            tile = ln.add(ln.mul(n, plan.teams), place.team)
            return tile, place.chunk(plan, 0), ln.both(ln.less(tile, tiles), ln.less(place.team, plan.teams))
        whole = plan.phase_units * plan.unit_tiles  # tiles of all phases but the last
        phase = ln.div(n, whole * plan.turns)
        first = ln.mul(phase, whole)
        inside = ln.both(ln.less(first, tiles), ln.less(place.team, 1))
        own = ln.most(ln.least(ln.sub(tiles, ln.least(first, tiles)), whole), 1)
        rest = ln.sub(n, ln.mul(first, plan.turns))
        turn = ln.div(rest, own)
        tile = ln.add(first, ln.sub(rest, ln.mul(turn, own)))
        return tile, place.chunk(plan, turn), ln.both(inside, ln.less(turn, plan.turns))

    def _own(self, stage: Value) -> Value:
        return ln.add(ln.mul(self.place.warp, self.plan.stages), stage)

    def _barrier(self, stage: Value) -> Value:
        return ln.add(self.barriers, ln.mul(self._own(stage), 8))

    def _slot(self, stage: Value) -> Value:
        at = ln.add(ln.mul(self._own(stage), self.plan.layout.chunk_bytes), self.plan.ring_at)
        return ln.add(self.place.shared, at)
