"""The kernel: a block for each row, query head and split of the positions.

The lanes of a block form streams: a stream is D / 8 lanes, each with 8 numbers of a head, and takes every n-th position
in order, with a running maximum (online softmax, arXiv 1805.02867). Streams are joined as a tree. Which position goes
where depends on the position alone, so a row's bits depend neither on the other rows nor on the length of the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Mail, Numbers, Sink

SPLIT = 256
"""Positions of a block."""

THREADS = 256
"""Of a block."""

_WARPS = THREADS // 32
_OWN = 8  # numbers of a head that a lane has
_AHEAD = 4  # positions of a stream that are loaded together
_TOGETHER = 8  # splits of which numbers are loaded together
_LOWEST = -1e30
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Plan:
    """The sizes that the op's docstring names; half: pairs that are rotated; eps: of the norms, None without."""

    rows: int
    heads: int
    kv_heads: int
    dim: int
    half: int
    length: int
    splits: int
    scale: float
    eps: float | None

    @property
    def lanes(self) -> int:
        """Of a stream."""
        return self.dim // _OWN

    @property
    def width(self) -> int:
        """Of a block's result, which is whole or has what it takes to join it with others."""
        return self.dim if self.splits == 1 else self.dim + 2

    @property
    def streams(self) -> int:
        """Of a block."""
        return THREADS // self.lanes

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return 4 * (3 * self.dim + _WARPS * (self.dim + 2))


@dataclass(frozen=True)
class Inputs:
    """qkv: [B, H + 2 KV, D]. cos, sin: i64 addresses [half], of the row. position, window, layer: i32. keys, values:
    i64 addresses of the caches. q_norm, k_norm: i64 addresses [D], or None."""

    qkv: Numbers | Mail
    cos: Value
    sin: Value
    position: Value
    window: Value
    layer: Value
    keys: Value
    values: Value
    q_norm: Value | None = None
    k_norm: Value | None = None


@dataclass(frozen=True)
class Team:
    """THREADS threads that attend together. thread: index among them. shared: i32 address of ``Plan.shared_bytes``.
    barrier: of all of them."""

    thread: Value
    shared: Value
    barrier: Callable[[], None]


@cache
def kernel(plan: Plan) -> Any:
    """Takes qkv, cos, sin, positions, (layer, window) [2], the norms if there are, and references to the caches,
    which it changes. Gives [B, H, 1, D], or of several splits what ``joining`` takes."""
    names = ["qkv", "cos", "sin", "positions", "scalars"] + ["q_norm", "k_norm"] * (plan.eps is not None)

    def decode_attention(*refs: Value) -> None:
        *inputs, keys, values, out, shared = refs
        at = {name: ln.global_address(ref) for name, ref in zip(names, inputs, strict=True)}
        block, result = ln.cta(), Numbers(ln.global_address(out))
        split, head_of_row = ln.rem(block, plan.splits), ln.div(block, plan.splits)
        row, head = ln.div(head_of_row, plan.heads), ln.rem(head_of_row, plan.heads)
        layer, window = (_load(at["scalars"], ln.integer(i), ln.i32()) for i in range(2))
        rows = ln.mul(ln.wide(row), 4 * plan.half)
        inputs = Inputs(
            Numbers(at["qkv"]),
            ln.add(at["cos"], rows),
            ln.add(at["sin"], rows),
            _load(at["positions"], row, ln.i32()),
            window,
            layer,
            ln.global_address(keys),
            ln.global_address(values),
            at.get("q_norm"),
            at.get("k_norm"),
        )

        def give(place: Value, value: Value, total: Value, most: Value) -> None:
            first = ln.mul(block, plan.width)
            if plan.splits == 1:
                result.store(ln.add(first, place), quotient(value, total))
            else:
                store_split(plan, result, first, place, value, total, most)

        team = Team(ln.thread(), ln.shared_address(shared), ln.barrier)
        attend(plan, inputs, team, row, head, split, give)

    return jax.jit(
        lane_kernel(
            decode_attention,
            jax.ShapeDtypeStruct((plan.rows, plan.heads, plan.splits, plan.width), jnp.float32),
            ctas=plan.rows * plan.heads * plan.splits,
            warpgroups=THREADS // 128,
            shared_bytes=plan.shared_bytes,
        )
    )


@cache
def joining(plan: Plan) -> Any:
    """Splits as one: [B, H, splits, D + 2] as :func:`kernel` gives them -> [B, H, D]."""

    def decode_attention_join(parts: Value, out: Value, _: Value) -> None:
        parts, out = (Numbers(ln.global_address(ref)) for ref in (parts, out))
        thread, block = ln.thread(), ln.cta()
        with ln.when(ln.less(thread, plan.dim)):
            first = ln.mul(ln.mul(block, plan.splits), plan.dim + 2)
            value = join(plan, parts, first, ln.integer(plan.splits), thread)
            out.store(ln.add(ln.mul(block, plan.dim), thread), value)

    out = jax.ShapeDtypeStruct((plan.rows, plan.heads, plan.dim), jnp.float32)
    warpgroups = -(-plan.dim // 128)
    return jax.jit(
        lane_kernel(decode_attention_join, out, ctas=plan.rows * plan.heads, warpgroups=warpgroups, shared_bytes=16)
    )


def join(plan: Plan, parts: Numbers | Mail, first: Value, splits: Value, place: Value) -> Value:
    """Number ``place`` of a head's result from its splits, which begin at ``first``.

    A split is D + 2 numbers, the weighted sum of values, the sum of weights, and the binary logarithm of what both are
    multiples of. They are added one after the other; one that saw nothing changes no bit.
    """
    rounds = ln.div(ln.add(splits, _TOGETHER - 1), _TOGETHER)

    def load(round: Value, *places: Value) -> list[list[Value]]:
        """Peaks of splits that follow each other, and their numbers at ``places``, as of nothing beyond the last."""
        wanted = []
        for i in range(_TOGETHER):
            split = ln.add(ln.mul(round, _TOGETHER), i)
            begin = ln.add(first, ln.mul(split, plan.dim + 2))
            wanted += [(ln.add(begin, at), ln.less(split, splits)) for at in (ln.integer(plan.dim + 1), *places)]
        flat = [value for (value,) in parts.load(wanted, 1)]
        found = []
        for i in range(0, len(flat), 1 + len(places)):
            found.append([ln.select(wanted[i][1], flat[i], ln.real(_LOWEST)), *flat[i + 1 : i + 1 + len(places)]])
        return found

    def peak(round: Value, state: list[Value]) -> list[Value]:
        (most,) = state
        for (value,) in load(round):
            most = ln.greatest(most, value)
        return [most]

    (most,) = ln.carried_loop(0, rounds, [ln.real(_LOWEST)], peak)

    def add(round: Value, state: list[Value]) -> list[Value]:
        for own, *new in load(round, place, ln.integer(plan.dim)):
            factor = ln.power_of_two(ln.fsub(own, most))  # of a split that is not there, 0
            state = [ln.fadd(old, ln.fmul(factor, x)) for old, x in zip(state, new, strict=True)]
        return state

    value, total = ln.carried_loop(0, rounds, [ln.real(0.0)] * 2, add)
    return quotient(value, total)


def quotient(value: Value, total: Value) -> Value:
    """0 where there was nothing to see."""
    return ln.divide(value, ln.greatest(total, ln.real(1e-30)))


def store_split(plan: Plan, parts: Sink, first: Value, place: Value, value: Value, total: Value, most: Value) -> None:
    """What :func:`join` takes, by thread ``place``; ``first``: where the split begins."""
    parts.store(ln.add(first, place), value)
    with ln.when(ln.equal(place, 0)):
        parts.store(ln.add(first, plan.dim), total)
        parts.store(ln.add(first, plan.dim + 1), most)


def attend(
    plan: Plan,
    inputs: Inputs,
    team: Team,
    row: Value,
    head: Value,
    split: Value,
    give: Callable[[Value, Value, Value, Value], None],
) -> None:
    """One split of a head. give: called in D threads with the thread's place, its weighted sum of values, the sum of
    weights, and the binary logarithm of what both are multiples of."""
    dim, group = plan.dim, plan.heads // plan.kv_heads
    kv_head = ln.div(head, group)
    position, window, shared, thread = inputs.position, inputs.window, team.shared, team.thread
    is_there = ln.equal(ln.flag(ln.negative(position)), 0)
    is_inside = ln.less(position, plan.length)  # unsigned: not negative either
    warp, lane = ln.warp_of(thread), ln.land(thread, 31)

    begin = ln.mul(split, SPLIT)
    is_last = ln.both(ln.equal(ln.div(position, SPLIT), split), is_inside)
    # Of this row, head and layer: where position 0 lies in the caches.
    head_words = ln.mul(
        ln.add(ln.mul(ln.add(ln.mul(inputs.layer, plan.rows), row), plan.kv_heads), kv_head), plan.length
    )
    base = ln.mul(ln.wide(head_words), 4 * dim)
    keys, values = (ln.add(cache, base) for cache in (inputs.keys, inputs.values))
    stream = ln.div(thread, plan.lanes)
    first = ln.mul(ln.rem(thread, plan.lanes), _OWN)  # of the lane's numbers

    # Positions below `stop` are in the cache; those before `low` are out of the window.
    end = ln.add(begin, SPLIT)
    stop = ln.select(is_there, ln.least(ln.least(position, end), plan.length), ln.integer(0))
    far = ln.less(window, ln.add(position, 1))
    low = ln.select(ln.both(far, ln.less(ln.integer(0), window)), ln.sub(ln.add(position, 1), window), ln.integer(0))
    step = plan.streams * _AHEAD
    skipped = ln.div(ln.sub(ln.most(low, begin), begin), step)
    turns = ln.div(ln.add(ln.sub(ln.most(stop, begin), begin), step - 1), step)

    def load(turn: Value) -> list[tuple[list[Value], list[Value], Value]]:
        """Key, value and whether they are seen, of the stream's next positions."""
        loaded = []
        for ahead in range(_AHEAD):
            p = ln.add(ln.add(begin, ln.mul(turn, step)), ln.add(stream, ahead * plan.streams))
            is_seen = ln.both(ln.less(p, stop), ln.equal(ln.flag(ln.less(p, low)), 0))
            here = ln.mul(ln.wide(ln.add(ln.mul(p, dim), first)), 4)
            key, value = (_load_row(ln.add(cache, here), is_seen) for cache in (keys, values))
            loaded.append((key, value, is_seen))
        return loaded

    # The first ones are on their way while the new query, key and value are made ready for use, in shared memory.
    at_once = load(skipped)
    new_q, new_k, new_v = (ln.add(shared, 4 * dim * i) for i in range(3))
    projected = ln.mul(row, plan.heads + 2 * plan.kv_heads)
    own_q, own_k = ln.add(projected, head), ln.add(projected, ln.add(kv_head, plan.heads))
    own_v = ln.add(own_k, plan.kv_heads)
    scale = plan.scale * _LOG2E
    for which, (index, weight, factor, target) in enumerate(
        ((own_q, inputs.q_norm, scale, new_q), (own_k, inputs.k_norm, None, new_k))
    ):
        with ln.when(ln.equal(warp, which)):
            _make_ready(plan, inputs, weight, factor, index, lane, target)
    with ln.when(ln.equal(warp, 2)):
        for place, value in _load_head(plan, inputs, own_v, lane):
            ln.store_shared(ln.add(new_v, ln.mul(place, 4)), value)
    team.barrier()

    with ln.when(ln.both(ln.both(is_last, ln.equal(ln.rem(head, group), 0)), ln.less(thread, dim))):
        here = ln.mul(ln.wide(ln.add(ln.mul(position, dim), thread)), 4)
        for cache, new in ((keys, new_k), (values, new_v)):
            (number,) = ln.load_shared(ln.add(new, ln.mul(thread, 4)), 1, real=True)
            ln.store_global(ln.add(cache, here), number)

    q = _load_shared(ln.add(new_q, ln.mul(first, 4)))

    def scores(keys: list[list[Value]]) -> list[Value]:
        """Of several positions, whose sums over the stream's lanes go side by side."""
        found = []
        for k in keys:
            score = ln.fmul(q[0], k[0])
            for a, b in zip(q[1:], k[1:], strict=True):
                score = ln.fma(a, b, score)
            found.append(score)
        distance = 1
        while distance < plan.lanes:
            found = [ln.fadd(score, ln.neighbour(score, distance)) for score in found]
            distance *= 2
        return found

    def one(state: list[Value], score: Value, v: list[Value], is_seen: Value) -> list[Value]:
        """The stream's state (maximum, sum of weights, weighted sum of values) with one more position."""
        score = ln.select(is_seen, score, ln.real(_LOWEST))
        most, total, *sums = state
        peak = ln.greatest(most, score)
        kept = ln.power_of_two(ln.fsub(most, peak))
        weight = ln.select(is_seen, ln.power_of_two(ln.fsub(score, peak)), ln.real(0.0))
        sums = [ln.fma(weight, x, ln.fmul(kept, y)) for x, y in zip(v, sums, strict=True)]
        return [peak, ln.fma(total, kept, weight), *sums]

    def all_of(loaded: list[tuple[list[Value], list[Value], Value]], state: list[Value]) -> list[Value]:
        for score, (_, v, is_seen) in zip(scores([k for k, _, _ in loaded]), loaded, strict=True):
            state = one(state, score, v, is_seen)
        return state

    state = all_of(at_once, [ln.real(_LOWEST)] + [ln.real(0.0)] * (_OWN + 1))
    state = ln.carried_loop(ln.add(skipped, 1), turns, state, lambda turn, state: all_of(load(turn), state))

    # The token itself: the last position of its stream.
    is_own = ln.both(is_last, ln.equal(ln.rem(ln.sub(position, begin), plan.streams), stream))
    own = [_load_shared(ln.add(new, ln.mul(first, 4))) for new in (new_k, new_v)]
    own[1] = [ln.select(is_own, x, ln.real(0.0)) for x in own[1]]
    (own_score,) = scores(own[:1])
    state = one(state, own_score, own[1], is_own)

    distance = plan.lanes
    while distance < 32:
        state = _join(state, [ln.neighbour(x, distance) for x in state])
        distance *= 2
    parts = ln.add(shared, 12 * dim)
    mine = ln.add(parts, ln.mul(warp, 4 * (dim + 2)))
    with ln.when(ln.less(lane, plan.lanes)):
        for i in range(_OWN):
            ln.store_shared(ln.add(mine, ln.mul(ln.add(first, i), 4)), state[2 + i])
        with ln.when(ln.equal(lane, 0)):
            ln.store_shared(ln.add(mine, 4 * dim), state[1])
            ln.store_shared(ln.add(mine, 4 * dim + 4), state[0])
    team.barrier()

    with ln.when(ln.less(thread, dim)):

        def part(index: int) -> list[Value]:
            from_here = ln.add(parts, 4 * index * (dim + 2))
            (value,) = ln.load_shared(ln.add(from_here, ln.mul(thread, 4)), 1, real=True)
            total, most = (ln.load_shared(from_here, 1, at=4 * dim + 4 * i, real=True)[0] for i in range(2))
            return [most, total, value]

        joined = [part(i) for i in range(_WARPS)]
        while len(joined) > 1:
            joined = [_join(a, b) for a, b in zip(joined[::2], joined[1::2], strict=True)]
        most, total, value = joined[0]
        give(thread, value, total, most)


def _join(a: list[Value], b: list[Value]) -> list[Value]:
    """Two states as one; the order of the two does not matter to the bits."""
    peak = ln.greatest(a[0], b[0])
    x, y = (ln.power_of_two(ln.fsub(state[0], peak)) for state in (a, b))
    return [peak, *(ln.fadd(ln.fmul(p, x), ln.fmul(q, y)) for p, q in zip(a[1:], b[1:], strict=True))]


def _load_head(plan: Plan, inputs: Inputs, index: Value, lane: Value) -> list[tuple[Value, Value]]:
    """(place, number) of those of a new head's vector that the lane of a warp has."""
    places = [ln.add(lane, 32 * i) for i in range(plan.dim // 32)]
    start = ln.mul(index, plan.dim)
    numbers = inputs.qkv.load([(ln.add(start, place), ln.equal(lane, lane)) for place in places], 1)
    return [(place, number) for place, (number,) in zip(places, numbers, strict=True)]


def _make_ready(
    plan: Plan,
    inputs: Inputs,
    weight: Value | None,
    factor: float | None,
    index: Value,
    lane: Value,
    target: Value,
) -> None:
    """By one warp: a new head's vector, normed if need be, rotated and multiplied, to shared memory."""
    places = [ln.add(lane, 32 * i) for i in range(plan.dim // 32)]
    firsts = [ln.less(place, plan.half) for place in places]
    turned = [ln.less(place, 2 * plan.half) for place in places]
    pairs = [ln.select(first, p, ln.sub(p, plan.half)) for first, p in zip(firsts, places, strict=True)]
    pairs = [ln.select(is_turned, pair, ln.integer(0)) for is_turned, pair in zip(turned, pairs, strict=True)]
    # All that is there already is asked for before x, which may have to be awaited.
    turns = [[_load(base, pair, ln.f32()) for base in (inputs.cos, inputs.sin)] for pair in pairs]
    weights = [] if weight is None else [_load(weight, place, ln.f32()) for place in places]
    x = [number for _, number in _load_head(plan, inputs, index, lane)]
    if weights and plan.eps is not None:
        squares = ln.real(0.0)
        for value in x:
            squares = ln.fma(value, value, squares)
        for distance in (1, 2, 4, 8, 16):
            squares = ln.fadd(squares, ln.neighbour(squares, distance))
        mean = ln.fma(squares, ln.real(1 / plan.dim), ln.real(plan.eps))
        norm = ln.reciprocal(ln.root(mean))
        x = [ln.fmul(ln.fmul(value, norm), w) for value, w in zip(x, weights, strict=True)]
    for place, value in zip(places, x, strict=True):
        ln.store_shared(ln.add(target, ln.mul(place, 4)), value)
    ln.warp_barrier()
    done = []
    for i, value in enumerate(x):
        other = ln.select(firsts[i], ln.add(places[i], plan.half), pairs[i])
        (partner,) = ln.load_shared(ln.add(target, ln.mul(other, 4)), 1, real=True)
        cos, sin = turns[i]
        rotated = ln.fma(value, cos, ln.fmul(partner, ln.select(firsts[i], ln.fsub(ln.real(0.0), sin), sin)))
        result = ln.select(turned[i], rotated, value)
        done.append(result if factor is None else ln.fmul(result, ln.real(factor)))
    ln.warp_barrier()
    for place, value in zip(places, done, strict=True):
        ln.store_shared(ln.add(target, ln.mul(place, 4)), value)


def _load(base: Value, index: Value, kind: Any) -> Value:
    return ln.ptx("ld.global.b32 $0, [$1];", ln.add(base, ln.mul(ln.wide(index), 4)), result=kind, effect=True)


def _load_row(address: Value, is_seen: Value) -> list[Value]:
    """A lane's numbers, or zeros: what nobody wrote may be no number."""
    return [x for at in (0, 16) for x in ln.load_global(ln.add(address, at), 4, is_seen)]


def _load_shared(address: Value) -> list[Value]:
    return ln.load_shared(address, 4, real=True) + ln.load_shared(address, 4, at=16, real=True)
