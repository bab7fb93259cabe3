"""The end of a phase: the results of a row's chunks are added, then gate, bias and residual, and the row is written."""

from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.layout import ROWS
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import TOKEN_STRIDE, WARPS, Plan

_LOG2_E = 1.4426950408889634


@dataclass
class Outputs:
    """i64 addresses: y and residual [batch, N] float32, bias [N] float32; None for what is not given."""

    y: Value
    bias: Value | None
    residual: Value | None


def finish(plan: Plan, place: Place, partials: Value, first: Value, out: Outputs) -> None:
    """Units first .. first + phase_units - 1 of the block, as far as it has them, from their partial results."""
    threads = WARPS * 32
    elements = plan.phase_units * plan.batch * ROWS
    unit_bytes = plan.unit_tiles * plan.tile_partial_bytes
    for start in range(0, elements, threads):
        element = ln.add(place.thread, start)
        row, rest = ln.land(element, ROWS - 1), ln.shift_right(element, 4)
        unit = ln.div(rest, plan.batch)
        token = ln.sub(rest, ln.mul(unit, plan.batch))
        own = ln.add(first, unit)
        row_out = ln.add(ln.mul(ln.add(ln.mul(own, plan.stride), place.cta), ROWS), row)
        inside = ln.both(ln.less(own, place.units), ln.less(row_out, plan.layout.rows))
        if start + threads > elements:
            inside = ln.both(inside, ln.less(element, elements))
        with ln.when(inside):
            at = ln.add(partials, ln.mul(unit, unit_bytes))
            at = ln.add(at, ln.mul(ln.add(row, ln.mul(token, TOKEN_STRIDE)), 4))
            index = ln.add(ln.mul(token, plan.layout.rows), row_out)
            sums = [_chunks(plan, at, tile * plan.tile_partial_bytes) for tile in range(plan.unit_tiles)]
            if plan.slices > 1:
                whole = plan.batch * plan.layout.rows
                for tile, value in enumerate(sums):
                    part = ln.add(ln.mul(place.slice, plan.unit_tiles), tile)
                    ln.store_global(ln.offset(out.y, ln.mul(ln.add(index, ln.mul(part, whole)), 4)), value)
                continue
            value = ln.fmul(_activate(plan.gate, sums[0]), sums[1]) if plan.gate else sums[0]
            if out.bias is not None:
                value = ln.fadd(value, _read(out.bias, row_out))
            if out.residual is not None:
                value = ln.fadd(value, _read(out.residual, index))
            ln.store_global(ln.offset(out.y, ln.mul(index, 4)), value)


def _chunks(plan: Plan, address: Value, at: int) -> Value:
    """The results of a row's chunks: those of a pass, neighbours first, as a tree; then the passes in order."""
    total = None
    for turn in range(plan.turns):
        places = [at + (turn * plan.group + i) * plan.partial_words * 4 for i in range(plan.group)]
        values = [ln.load_shared(address, 1, at=place, real=True)[0] for place in places]
        while len(values) > 1:
            pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
            values = [ln.fadd(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        total = values[0] if total is None else ln.fadd(total, values[0])
    return total


def _activate(name: str, a: Value) -> Value:
    """silu(a), or gelu(a) in its tanh form: both are a / (1 + exp(-u))."""
    u = a
    if name == "gelu":
        cubic = ln.fma(ln.fmul(ln.fmul(a, a), ln.real(0.044715)), a, a)
        u = ln.fmul(cubic, ln.real(1.5957691216057308))
    return ln.fmul(a, ln.reciprocal(ln.fadd(ln.real(1.0), ln.power_of_two(ln.fmul(u, ln.real(-_LOG2_E))))))


def _read(base: Value, index: Value) -> Value:
    return ln.load_global(ln.offset(base, ln.mul(index, 4)), 1, ln.equal(index, index))[0]
