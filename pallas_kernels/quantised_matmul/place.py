"""Where a thread stands: its lane, and the warp's part of the work."""

from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.plan import Plan

BARRIER = 3
"""The first barrier that products use; those before it are for others in the same kernel."""


@dataclass(frozen=True)
class Place:
    """thread, warp, lane: indices; cta: of the block in its slice. shared: i32 address of the block's shared memory.
    team, member: warp ``member`` of its team. slice: of K. units: of this block. is_idle: i1, whether the warp or its
    whole block has nothing to do: such a warp belongs to no barrier. own_barrier: the product's own."""

    thread: Value
    warp: Value
    lane: Value
    cta: Value
    shared: Value
    team: Value
    member: Value
    slice: Value
    units: Value
    is_idle: Value
    own_barrier: int

    @classmethod
    def make(cls, plan: Plan, shared: Value, cta: Value, index: int = 0) -> "Place":
        """cta: of the grid; those beyond the plan's have no units. index: of the product, if a kernel has several."""
        thread = ln.thread()
        warp = ln.warp_of(thread)
        team = ln.div(warp, plan.group)
        member = ln.sub(warp, ln.mul(team, plan.group))
        part = ln.integer(0)
        if plan.slices > 1:
            part = ln.div(cta, plan.stride)
            cta = ln.sub(cta, ln.mul(part, plan.stride))
        units = ln.div(ln.sub(ln.integer(plan.units + plan.stride - 1), ln.least(cta, plan.stride)), plan.stride)
        units = ln.select(ln.less(cta, plan.stride), units, ln.integer(0))
        is_idle = ln.either(ln.equal(units, 0), ln.equal(ln.flag(ln.less(warp, plan.warps)), 0))
        return cls(thread, warp, ln.land(thread, 31), cta, shared, team, member, part, units, is_idle, BARRIER + index)

    def barrier(self, plan: Plan) -> None:
        """Of all warps of the block that work."""
        ln.group_barrier(self.own_barrier, 32 * plan.warps)

    def chunk(self, plan: Plan, turn: Value | int) -> Value:
        """The warp's chunk of a row in a turn of the block; beyond the last there are none."""
        part = self.slice if plan.slices > 1 else turn
        first = ln.integer(part * plan.group) if isinstance(part, int) else ln.mul(part, plan.group)
        return ln.add(first, self.member)
