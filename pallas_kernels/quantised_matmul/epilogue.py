"""The end of a phase: the results of a row's chunks are added, then gate, bias and residual, and the row is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Mail, Numbers, Sink
from pallas_kernels.quantised_matmul.layout import ROWS
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import TOKEN_STRIDE, Plan

_LOG2_E = 1.4426950408889634


@dataclass
class Outputs:
    """y and residual: [batch, N]; bias: [N]; None for what is not given."""

    y: Sink
    bias: Numbers | None
    residual: Numbers | Mail | None


@dataclass(frozen=True)
class _Element:
    """What a thread ends: a row of a unit, of a token. index: in y. column: in a row of y. inside: i1, if it exists."""

    unit: Value
    token: Value
    row: Value
    column: Value
    index: Value
    inside: Value


def _elements(plan: Plan, place: Place, first: Value) -> list[_Element]:
    """Of the thread, in the phase that begins at unit ``first`` of the block."""
    threads, count = plan.warps * 32, plan.phase_units * plan.batch * ROWS
    found = []
    for start in range(0, count, threads):
        element = ln.add(place.thread, start)
        row, rest = ln.land(element, ROWS - 1), ln.shift_right(element, 4)
        unit = ln.div(rest, plan.batch)
        token = ln.sub(rest, ln.mul(unit, plan.batch))
        own = ln.add(first, unit)
        column = ln.add(ln.mul(ln.add(ln.mul(own, plan.stride), place.cta), ROWS), row)
        inside = ln.both(ln.less(own, place.units), ln.less(column, plan.layout.rows))
        if start + threads > count:
            inside = ln.both(inside, ln.less(element, count))
        index = ln.add(ln.mul(token, plan.layout.rows), column)
        found.append(_Element(unit, token, row, column, index, inside))
    return found


def load_addends(plan: Plan, place: Place, first: Value, out: Outputs) -> list[list[Value]]:
    """What :func:`finish` adds to each of the thread's results, in order. It can be asked for long before."""
    found = []
    for element in _elements(plan, place, first):
        own = [] if out.bias is None else out.bias.load([(element.column, element.inside)], 1)[0]
        more = [] if out.residual is None else out.residual.load([(element.index, element.inside)], 1)[0]
        found.append(own + more)
    return found


def finish(
    plan: Plan, place: Place, partials: Value, first: Value, out: Outputs, addends: Sequence[Sequence[Value]]
) -> None:
    """Units first .. first + phase_units - 1 of the block, as far as it has them, from their partial results."""
    unit_bytes = plan.unit_tiles * plan.tile_partial_bytes
    for element, own in zip(_elements(plan, place, first), addends, strict=True):
        with ln.when(element.inside):
            at = ln.add(partials, ln.mul(element.unit, unit_bytes))
            at = ln.add(at, ln.mul(ln.add(element.row, ln.mul(element.token, TOKEN_STRIDE)), 4))
            sums = [_chunks(plan, at, tile * plan.tile_partial_bytes) for tile in range(plan.unit_tiles)]
            if plan.slices > 1:
                whole = plan.batch * plan.layout.rows
                for tile, value in enumerate(sums):
                    part = ln.add(ln.mul(place.slice, plan.unit_tiles), tile)
                    out.y.store(ln.add(element.index, ln.mul(part, whole)), value)
                continue
            value = ln.fmul(_activate(plan.gate, sums[0]), sums[1]) if plan.gate else sums[0]
            for addend in own:
                value = ln.fadd(value, addend)
            out.y.store(element.index, value)


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
