"""Where a thread stands: its lane, and the warp's part of the work."""

from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.plan import Plan


@dataclass(frozen=True)
class Place:
    """thread, warp, lane: indices; cta: of the block in its slice. shared: i32 address of the block's shared memory.
    team, member: warp ``member`` of its team; teams beyond the last are idle. slice: of K. units: of this block."""

    thread: Value
    warp: Value
    lane: Value
    cta: Value
    shared: Value
    team: Value
    member: Value
    slice: Value
    units: Value

    @classmethod
    def make(cls, plan: Plan, shared: Value) -> "Place":
        thread, cta = ln.thread(), ln.cta()
        warp = ln.warp_of(thread)
        team = ln.div(warp, plan.group)
        member = ln.sub(warp, ln.mul(team, plan.group))
        part = ln.integer(0)
        if plan.slices > 1:
            part = ln.div(cta, plan.stride)
            cta = ln.sub(cta, ln.mul(part, plan.stride))
        units = ln.div(ln.sub(ln.integer(plan.units + plan.stride - 1), cta), plan.stride)
        return cls(thread, warp, ln.land(thread, 31), cta, shared, team, member, part, units)

    def chunk(self, plan: Plan, turn: Value | int) -> Value:
        """The warp's chunk of a row in a turn of the block; beyond the last there are none."""
        part = self.slice if plan.slices > 1 else turn
        first = ln.integer(part * plan.group) if isinstance(part, int) else ln.mul(part, plan.group)
        return ln.add(first, self.member)
