"""One chunk: 16 rows by 256 columns of weights times up to 8 tokens, by the tensor cores' integer products.

Two digits of x are two products each. Their integer sums are exact; then, group by group,

    i = 256 high + low                              exact below 2**24, else rounded once
    t = i * scale of x - offset * sum of x
    partial = fma(d * scale of the group, t, partial)       and fma(minimum, sum of x, partial)

A partial result takes the groups of a pair of blocks in their order; the four of a chunk are added as a tree. This
order holds for one token and for eight, so that the bits of a token do not depend on how many there are:

* eight tokens: the columns of a tensor core operation are tokens, a lane has all four pairs;
* one token: column j of an operation is block j of the chunk, by zeros elsewhere in x. The sums of all eight blocks are
  there after eight operations, spread over the lanes, so that scaling costs an eighth; lane t has pair t.
"""

from dataclasses import dataclass

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.layout import CHUNK
from pallas_kernels.quantised_matmul.operands import fragments, integer_product
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import Plan
from pallas_kernels.quantised_matmul.scales import Blocks, Scales

MAGIC_BITS = 0x4B400000
MAGIC = 12582912.0
"""An integer s added to MAGIC_BITS gives, read as float32, MAGIC + s for |s| < 2**22: conversion costs nothing."""


@dataclass
class Factor:
    """The warp's chunk of x, in registers.

    digits: four words (high, low by column half) of each block of the lane's token; with one token, of block g alone.
    entries: scales and sums of the lane's two columns, of each block; with one token, of blocks 2t and 2t + 1.
    valid: i1 of each pair (with one token: of pair t), None where all rows have it.
    """

    plan: Plan
    digits: list[list[Value]]
    entries: list["Entry"]
    valid: list[Value | None]
    masks: list[Value]

    @classmethod
    def load(cls, plan: Plan, place: Place, chunk: Value) -> "Factor":
        g, t = ln.shift_right(place.lane, 2), ln.land(place.lane, 3)
        digits_at = ln.add(ln.add(place.shared, ln.mul(place.member, plan.digit_bytes)), plan.digits_at)
        entries_at = ln.add(ln.add(place.shared, ln.mul(place.member, plan.entry_bytes)), plan.entries_at)
        first_pair = ln.mul(chunk, CHUNK)
        if plan.batch == 1:
            digits = [ln.load_shared(ln.add(digits_at, ln.mul(place.lane, 16)), 4)]
            entries = [Entry.load(plan, ln.add(entries_at, ln.mul(t, plan.entry_words * 4)), 0)]
            valid = [ln.less(ln.add(first_pair, t), plan.layout.pairs) if plan.has_missing_pairs else None]
            masks = [ln.select(ln.equal(g, j), ln.integer(-1), ln.integer(0)) for j in range(8)]
            return cls(plan, digits, entries, valid, masks)
        token = ln.least(g, plan.batch - 1)  # columns beyond the last token repeat it, and are not looked at
        digits_at = ln.add(digits_at, ln.add(ln.mul(token, 64), ln.mul(t, 16)))
        pair_of_tokens = ln.least(t, plan.entry_columns - 1)
        entries_at = ln.add(entries_at, ln.mul(pair_of_tokens, plan.entry_words * 4))
        digits = [ln.load_shared(digits_at, 4, at=b * plan.batch * 64) for b in range(8)]
        entries = [Entry.load(plan, entries_at, b * plan.entry_columns * plan.entry_words * 4) for b in range(8)]
        last = plan.layout.pairs - (plan.layout.chunks - 1) * CHUNK  # pairs of a row's last chunk
        always = 0 if plan.passes * plan.group != plan.layout.chunks else last
        valid = [
            ln.less(ln.add(first_pair, pair), plan.layout.pairs) if pair >= always else None for pair in range(CHUNK)
        ]
        return cls(plan, digits, entries, valid, [])


@dataclass
class Entry:
    """Scales of x, and sums by group, of two columns of the tensor core operation (tokens or blocks)."""

    scale: list[Value]
    sums: list[list[Value]]

    @classmethod
    def load(cls, plan: Plan, address: Value, at: int) -> "Entry":
        words = []
        while len(words) < plan.entry_words:
            words += ln.load_shared(address, 2, at=at + 4 * len(words), real=True)
        return cls(words[:2], [words[i : i + 2] for i in range(2, len(words), 2)])


def multiply(x: Factor, place: Place, slot: Value) -> list[Value]:
    """The chunk in shared memory at slot, times x: rows g and g + 8 of each of the lane's tokens (one or two)."""
    return (_one_token if x.plan.batch == 1 else _tokens)(x, place, slot)


def _one_token(x: Factor, place: Place, slot: Value) -> list[Value]:
    plan, fmt = x.plan, x.plan.fmt
    digits, entry = x.digits[0], x.entries[0]
    sums = _start(plan)
    for pair in range(CHUNK):
        a = fragments(fmt, place.lane, ln.add(slot, pair * plan.layout.pair_bytes))
        for block in (0, 1):
            mask = x.masks[2 * pair + block]
            integer_product(fmt, sums, a[4 * block : 4 * block + 4], [ln.land(d, mask) for d in digits])
    own_pair = ln.add(slot, ln.mul(ln.land(place.lane, 3), plan.layout.pair_bytes))
    scales = Scales.load(plan, place, own_pair, Blocks.load(plan, place, slot), x.valid[0])
    partials: list[Value | None] = [None, None]
    for block in (0, 1):
        for group in range(fmt.halves):
            for row in (0, 1):
                partials[row] = _add(
                    plan, partials[row], sums[group], 2 * row + block, entry, block, scales, group, block
                )
    results = []
    for total in partials:
        for distance in (1, 2):
            total = ln.fadd(total, ln.neighbour(total, distance))
        results.append(total)
    return results


def _tokens(x: Factor, place: Place, slot: Value) -> list[Value]:
    plan, fmt = x.plan, x.plan.fmt
    blocks = Blocks.load(plan, place, slot)
    pairs = []
    for pair in range(CHUNK):
        at = ln.add(slot, pair * plan.layout.pair_bytes)
        a = fragments(fmt, place.lane, at)
        scales = Scales.load(plan, place, at, blocks, x.valid[pair])
        partials: list[Value | None] = [None] * 4
        for block in (0, 1):
            sums = _start(plan)
            integer_product(fmt, sums, a[4 * block : 4 * block + 4], x.digits[2 * pair + block])
            entry = x.entries[2 * pair + block]
            for group in range(fmt.halves):
                for i in range(4):
                    partials[i] = _add(plan, partials[i], sums[group], i, entry, i % 2, scales, group, block)
        pairs.append(partials)
    return [ln.fadd(ln.fadd(a, b), ln.fadd(c, d)) for a, b, c, d in zip(*pairs, strict=True)]


def _start(plan: Plan) -> list[list[list[Value]]]:
    """Integer sums by group and digit, biased."""
    return [[[ln.integer(MAGIC_BITS)] * 4 for _ in (0, 1)] for _ in range(plan.fmt.halves)]


def _add(
    plan: Plan,
    partial: Value | None,
    sums: list[list[Value]],
    i: int,
    entry: Entry,
    column: int,
    scales: Scales,
    group: int,
    block: int,
) -> Value:
    """One group more: register i of the integer sums, which belongs to row half i // 2."""
    high, low = (ln.as_float(digit[i]) for digit in sums)
    # Exact: the first takes the bias out of both digits, and 257 * MAGIC has ten bits.
    whole = ln.fadd(ln.fma(high, ln.real(256.0), ln.real(-257.0 * MAGIC)), low)
    if plan.fmt.offset:
        t = ln.fma(whole, entry.scale[column], entry.sums[group][column])
    else:
        t = ln.fmul(whole, entry.scale[column])
    factor = scales.factor(i // 2, block, group)
    partial = ln.fmul(factor, t) if partial is None else ln.fma(factor, t, partial)
    if plan.fmt.min_sign:
        partial = ln.fma(scales.minimum(i // 2, block, group), entry.sums[group][column], partial)
    return partial
