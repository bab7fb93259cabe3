"""The prologue: rows of x, normed if asked, become 16-bit integers in shared memory.

A block of 32 columns has one scale, a power of two, so that x = scale * (256 high + low) with int8 high, uint8 low and
every product with the scale exact. The greatest magnitude of a block has 15 bits. A block that is not finite has the
scale NaN, which makes NaN of every result of its row.

Formats with an offset or a minimum also need the sum of each group, times the scale (and minus the offset).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Mail, Numbers
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import RUNS, UNIT, Plan


@dataclass(frozen=True)
class Run:
    """UNIT columns of a row of x, four in a lane: part ``part`` of chunk ``chunk``, of row ``token``, if valid (i1)."""

    token: Value
    chunk: Value
    part: Value
    valid: Value
    values: list[Value]


def load(plan: Plan, place: Place, x: Numbers | Mail, chunks: Sequence[Value]) -> list[Run]:
    """Of those chunks of all rows [batch, K], the warp's own, what this team quantises; zeros beyond K.

    All loads are in flight together; they should be asked for before weights, which would keep them waiting.
    """
    runs: list[Run] = []
    places: list[tuple[Value, Value]] = []
    for chunk in chunks:
        for j in range(-(-RUNS * plan.batch // plan.teams)):
            run = ln.add(place.team, j * plan.teams)
            token, part = ln.div(run, RUNS), ln.rem(run, RUNS)
            column = _column(chunk, part, place)
            valid = ln.less(run, RUNS * plan.batch)
            inside = ln.both(valid, ln.less(column, plan.layout.columns))
            runs.append(Run(token, chunk, part, valid, []))
            places.append((ln.add(ln.mul(token, plan.layout.columns), column), inside))
    return [replace(run, values=values) for run, values in zip(runs, x.load(places, 4) if places else [], strict=True)]


def load_norm(plan: Plan, place: Place, norm: Value, chunk: Value) -> list[list[Value]]:
    """The norm's weight [K] float32 for the runs of :func:`load`, which come in parts that take turns."""
    weights = []
    for j in range(RUNS if plan.teams % RUNS else 1):
        column = _column(chunk, ln.rem(ln.add(place.team, j * plan.teams), RUNS), place)
        inside = ln.less(column, plan.layout.columns)
        weights.append(ln.load_global(ln.offset(norm, ln.mul(column, 4)), 4, inside))
    return weights


def norm_factors(plan: Plan, place: Place, runs: list[Run]) -> None:
    """1 / sqrt(mean of squares + eps) of each row of x, to shared memory, from all its runs.

    Ends with a barrier of all who work. The order of the sum depends on the number of columns alone.
    """
    sums = ln.add(place.shared, plan.sums_at)
    for run in runs:
        squares = ln.fmul(run.values[0], run.values[0])
        for v in run.values[1:]:
            squares = ln.fma(v, v, squares)
        squares = _across(squares, (1, 2, 4, 8, 16))
        index = ln.add(ln.add(ln.mul(run.token, plan.norm_runs), ln.mul(run.chunk, RUNS)), run.part)
        with ln.when(ln.both(ln.equal(place.lane, 0), run.valid)):
            ln.store_shared(ln.add(sums, ln.mul(index, 4)), squares)
    place.barrier(plan)
    with ln.when(ln.less(place.warp, plan.batch)):
        squares = ln.real(0.0)
        for first in range(0, plan.norm_runs, 32):
            index = ln.add(place.lane, first)
            at = ln.add(ln.mul(place.warp, plan.norm_runs), ln.least(index, plan.norm_runs - 1))
            (value,) = ln.load_shared(ln.add(sums, ln.mul(at, 4)), 1, real=True)
            squares = ln.fadd(squares, ln.select(ln.less(index, plan.norm_runs), value, ln.real(0.0)))
        mean = ln.fmul(_across(squares, (1, 2, 4, 8, 16)), ln.real(1.0 / plan.layout.columns))
        factor = ln.reciprocal(ln.root(ln.fadd(mean, ln.real(plan.eps))))
        with ln.when(ln.equal(place.lane, 0)):
            ln.store_shared(ln.add(_factors(plan, place), ln.mul(place.warp, 4)), factor)
    place.barrier(plan)


def quantise(plan: Plan, place: Place, runs: list[Run], weights: list[list[Value]] | None) -> None:
    """Runs of :func:`load`, times the norm's factor and weight if there is one. Ends with a barrier of all who share
    them."""
    for j, run in enumerate(runs):
        values = run.values
        if weights is not None:
            at = ln.mul(ln.least(run.token, plan.batch - 1), 4)
            (factor,) = ln.load_shared(ln.add(_factors(plan, place), at), 1, real=True)
            values = [ln.fmul(ln.fmul(v, factor), w) for v, w in zip(values, weights[j % len(weights)], strict=True)]
        _store(plan, place, values, run.token, run.part, run.valid)
    if plan.teams > 1:
        place.barrier(plan)
    else:
        ln.warp_barrier()


def _column(chunk: Value, part: Value, place: Place) -> Value:
    return ln.add(ln.mul(ln.add(ln.mul(chunk, RUNS), part), UNIT), ln.mul(place.lane, 4))


def _factors(plan: Plan, place: Place) -> Value:
    return ln.add(place.shared, plan.sums_at + plan.norm_runs * plan.batch * 4)


def _store(plan: Plan, place: Place, values: list[Value], token: Value, part: Value, valid: Value) -> None:
    """Four neighbours of a lane, of part ``part`` of the chunk; eight lanes hold a block."""
    fmt, lane = plan.fmt, place.lane
    greatest = ln.absolute(values[0])
    for v in values[1:]:
        greatest = ln.greatest(greatest, ln.absolute(v))
    greatest = _across(greatest, (1, 2, 4), ln.greatest)
    exponent = ln.land(ln.as_int(greatest), 0x7F800000)
    scale_bits = ln.sub(ln.most(exponent, 15 << 23), 14 << 23)
    inverse = ln.as_float(ln.sub(ln.integer(254 << 23), scale_bits))
    finite = ln.less(exponent, 0x7F800000)
    scale = ln.as_float(ln.select(finite, scale_bits, ln.integer(0x7FC00000)))

    whole = [ln.least_signed(ln.nearest(ln.fmul(v, inverse)), 32767) for v in values]
    first, second = (ln.permute(whole[i], whole[i + 1], 0x5140) for i in (0, 2))
    low, high = ln.permute(first, second, 0x5410), ln.permute(first, second, 0x7632)

    block = ln.add(ln.mul(part, 4), ln.shift_right(lane, 3))
    t, half = ln.land(lane, 3), ln.land(ln.shift_right(lane, 2), 1)
    row = ln.add(ln.mul(block, plan.batch), token)
    at = ln.add(ln.add(ln.mul(row, 64), ln.mul(t, 16)), ln.mul(half, 4))
    digits = ln.add(ln.add(place.shared, ln.mul(place.member, plan.digit_bytes)), ln.add(at, plan.digits_at))
    with ln.when(valid):
        ln.store_shared(digits, high)
        ln.store_shared(digits, low, at=8)

    if plan.batch == 1:
        entry, side = ln.shift_right(block, 1), ln.land(block, 1)
    else:
        entry = ln.add(ln.mul(block, plan.entry_columns), ln.shift_right(token, 1))
        side = ln.land(token, 1)
    entry = ln.add(ln.add(ln.mul(entry, plan.entry_words * 4), ln.mul(side, 4)), plan.entries_at)
    entry = ln.add(ln.add(place.shared, ln.mul(place.member, plan.entry_bytes)), entry)
    with ln.when(ln.both(valid, ln.equal(ln.land(lane, 7), 0))):
        ln.store_shared(entry, scale)
    if not plan.has_sums:
        return
    in_group = (1, 2) if fmt.halves == 2 else (1, 2, 4)
    total = ln.add(ln.mul(ln.byte_sum(high, signed=True), 256), ln.byte_sum(low, signed=False))
    total = ln.fmul(ln.to_float(_across(total, in_group, ln.add)), scale)
    if fmt.offset:
        total = ln.fmul(total, ln.real(-fmt.offset))
    group = half if fmt.halves == 2 else ln.integer(0)
    owner = ln.equal(ln.land(lane, 3 if fmt.halves == 2 else 7), 0)
    with ln.when(ln.both(valid, owner)):
        ln.store_shared(ln.add(entry, ln.mul(group, 8)), total, at=8)


def _across(value: Value, distances: tuple[int, ...], combine=ln.fadd) -> Value:
    for distance in distances:
        value = combine(value, ln.neighbour(value, distance))
    return value
