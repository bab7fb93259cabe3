"""The kernel: a block for each row, query head and split of the positions.

The lanes of a block form streams: a stream is D / 8 lanes, each with 8 numbers of a head, and takes every n-th position
in order, with a running maximum (online softmax, arXiv 1805.02867). Streams are joined as a tree. Which position goes
where depends on the position alone, so a row's bits depend neither on the other rows nor on the length of the cache.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.lanes import Value

SPLIT = 256
"""Positions of a block."""

_WARPS = 8
_OWN = 8  # numbers of a head that a lane has
_AHEAD = 4  # positions of a stream that are loaded together
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
        return _WARPS * 32 // self.lanes


@cache
def kernel(plan: Plan) -> Any:
    """Takes qkv, cos, sin, positions, (layer, window) [2], the norms if there are, and references to the caches,
    which it changes. Gives [B, H, 1, D], or of several splits what ``joining`` takes."""
    names = ["qkv", "cos", "sin", "positions", "scalars"] + ["q_norm", "k_norm"] * (plan.eps is not None)

    def decode_attention(*refs: Value) -> None:
        *inputs, keys, values, out, shared = refs
        at = {name: ln.global_address(ref) for name, ref in zip(names, inputs, strict=True)}
        caches = ln.global_address(keys), ln.global_address(values)
        _program(plan, at, caches, ln.global_address(out), ln.shared_address(shared))

    return jax.jit(
        lane_kernel(
            decode_attention,
            jax.ShapeDtypeStruct((plan.rows, plan.heads, plan.splits, plan.width), jnp.float32),
            ctas=plan.rows * plan.heads * plan.splits,
            warpgroups=_WARPS // 4,
            shared_bytes=4 * (2 * plan.dim + _WARPS * (plan.dim + 2)),
        )
    )


@cache
def joining(plan: Plan) -> Any:
    """Splits as one: [B, H, splits, D + 2], each the weighted sum of values, the sum of weights, and the binary
    logarithm of what both are multiples of -> [B, H, D]. They are added one after the other."""
    dim = plan.dim

    def decode_attention_join(parts: Value, out: Value, _: Value) -> None:
        parts, out = (ln.global_address(ref) for ref in (parts, out))
        thread, block = ln.thread(), ln.cta()
        with ln.when(ln.less(thread, dim)):

            def load(split: Value, place: Value) -> Value:
                at = ln.mul(ln.add(ln.mul(block, plan.splits), split), plan.width)
                return _load(parts, ln.add(at, place), ln.f32())

            def peak(split: Value, state: list[Value]) -> list[Value]:
                return [ln.greatest(state[0], load(split, ln.integer(dim + 1)))]

            (most,) = ln.carried_loop(0, plan.splits, [ln.real(_LOWEST)], peak)

            def add(split: Value, state: list[Value]) -> list[Value]:
                factor = ln.power_of_two(ln.fsub(load(split, ln.integer(dim + 1)), most))
                new = load(split, thread), load(split, ln.integer(dim))
                return [ln.fadd(old, ln.fmul(factor, x)) for old, x in zip(state, new, strict=True)]

            value, total = ln.carried_loop(0, plan.splits, [ln.real(0.0)] * 2, add)
            place = ln.mul(ln.wide(ln.add(ln.mul(block, dim), thread)), 4)
            ln.store_global(ln.add(out, place), _quotient(value, total))

    out = jax.ShapeDtypeStruct((plan.rows, plan.heads, dim), jnp.float32)
    warpgroups = -(-dim // 128)
    return jax.jit(
        lane_kernel(decode_attention_join, out, ctas=plan.rows * plan.heads, warpgroups=warpgroups, shared_bytes=16)
    )


def _quotient(value: Value, total: Value) -> Value:
    """0 where there was nothing to see."""
    return ln.divide(value, ln.greatest(total, ln.real(1e-30)))


def _program(plan: Plan, at: dict[str, Value], caches: tuple[Value, Value], out: Value, shared: Value) -> None:
    dim, group = plan.dim, plan.heads // plan.kv_heads
    block = ln.cta()
    split, head_of_row = ln.rem(block, plan.splits), ln.div(block, plan.splits)
    row, head = ln.div(head_of_row, plan.heads), ln.rem(head_of_row, plan.heads)
    kv_head = ln.div(head, group)
    position = _load(at["positions"], row, ln.i32())
    is_there = ln.equal(ln.flag(ln.negative(position)), 0)
    is_inside = ln.less(position, plan.length)  # unsigned: not negative either
    layer, window = (_load(at["scalars"], ln.integer(i), ln.i32()) for i in range(2))
    thread = ln.thread()
    warp, lane = ln.warp_of(thread), ln.land(thread, 31)

    begin = ln.mul(split, SPLIT)
    is_last = ln.both(ln.equal(ln.div(position, SPLIT), split), is_inside)
    # Of this row, head and layer: where position 0 lies in the caches.
    head_words = ln.mul(ln.add(ln.mul(ln.add(ln.mul(layer, plan.rows), row), plan.kv_heads), kv_head), plan.length)
    base = ln.mul(ln.wide(head_words), 4 * dim)
    keys, values = (ln.add(cache, base) for cache in caches)
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

    # The first ones are on their way while the new query and key are made ready for use, in shared memory.
    at_once = load(skipped)
    new_q, new_k = shared, ln.add(shared, 4 * dim)
    projected = ln.mul(row, plan.heads + 2 * plan.kv_heads)
    own_q, own_k = ln.add(projected, head), ln.add(projected, ln.add(kv_head, plan.heads))
    own_v = ln.mul(ln.add(own_k, plan.kv_heads), dim)
    for which, (name, index, target) in enumerate((("q", own_q, new_q), ("k", own_k, new_k))):
        with ln.when(ln.equal(warp, which)):
            _make_ready(plan, at, name, ln.mul(index, dim), row, lane, target)
    ln.barrier()

    with ln.when(ln.both(ln.both(is_last, ln.equal(ln.rem(head, group), 0)), ln.less(thread, dim))):
        here = ln.mul(ln.wide(ln.add(ln.mul(position, dim), thread)), 4)
        (key,) = ln.load_shared(ln.add(new_k, ln.mul(thread, 4)), 1, real=True)
        ln.store_global(ln.add(keys, here), key)
        ln.store_global(ln.add(values, here), _load(at["qkv"], ln.add(own_v, thread), ln.f32()))

    q = _load_shared(ln.add(new_q, ln.mul(first, 4)))

    def one(state: list[Value], k: list[Value], v: list[Value], is_seen: Value) -> list[Value]:
        """The stream's state (maximum, sum of weights, weighted sum of values) with one more position."""
        score = ln.fmul(q[0], k[0])
        for a, b in zip(q[1:], k[1:], strict=True):
            score = ln.fma(a, b, score)
        distance = 1
        while distance < plan.lanes:
            score = ln.fadd(score, ln.neighbour(score, distance))
            distance *= 2
        score = ln.select(is_seen, score, ln.real(_LOWEST))
        most, total, *sums = state
        peak = ln.greatest(most, score)
        kept = ln.power_of_two(ln.fsub(most, peak))
        weight = ln.select(is_seen, ln.power_of_two(ln.fsub(score, peak)), ln.real(0.0))
        sums = [ln.fma(weight, x, ln.fmul(kept, y)) for x, y in zip(v, sums, strict=True)]
        return [peak, ln.fma(total, kept, weight), *sums]

    def all_of(loaded: list[tuple[list[Value], list[Value], Value]], state: list[Value]) -> list[Value]:
        for k, v, is_seen in loaded:
            state = one(state, k, v, is_seen)
        return state

    state = all_of(at_once, [ln.real(_LOWEST)] + [ln.real(0.0)] * (_OWN + 1))
    state = ln.carried_loop(ln.add(skipped, 1), turns, state, lambda turn, state: all_of(load(turn), state))

    # The token itself: the last position of its stream.
    new_v = ln.add(at["qkv"], ln.mul(ln.wide(ln.add(own_v, first)), 4))
    is_own = ln.both(is_last, ln.equal(ln.rem(ln.sub(position, begin), plan.streams), stream))
    state = one(state, _load_shared(ln.add(new_k, ln.mul(first, 4))), _load_row(new_v, is_own), is_own)

    distance = plan.lanes
    while distance < 32:
        state = _join(state, [ln.neighbour(x, distance) for x in state])
        distance *= 2
    parts = ln.add(shared, 8 * dim)
    mine = ln.add(parts, ln.mul(warp, 4 * (dim + 2)))
    with ln.when(ln.less(lane, plan.lanes)):
        for i in range(_OWN):
            ln.store_shared(ln.add(mine, ln.mul(ln.add(first, i), 4)), state[2 + i])
        with ln.when(ln.equal(lane, 0)):
            ln.store_shared(ln.add(mine, 4 * dim), state[1])
            ln.store_shared(ln.add(mine, 4 * dim + 4), state[0])
    ln.barrier()

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
        result = ln.add(out, ln.mul(ln.wide(ln.mul(block, plan.width)), 4))
        if plan.splits == 1:
            value = _quotient(value, total)
        ln.store_global(ln.offset(result, ln.mul(thread, 4)), value)
        if plan.splits > 1:
            with ln.when(ln.equal(thread, 0)):
                ln.store_global(ln.add(result, 4 * dim), total)
                ln.store_global(ln.add(result, 4 * dim + 4), most)


def _join(a: list[Value], b: list[Value]) -> list[Value]:
    """Two states as one; the order of the two does not matter to the bits."""
    peak = ln.greatest(a[0], b[0])
    x, y = (ln.power_of_two(ln.fsub(state[0], peak)) for state in (a, b))
    return [peak, *(ln.fadd(ln.fmul(p, x), ln.fmul(q, y)) for p, q in zip(a[1:], b[1:], strict=True))]


def _make_ready(
    plan: Plan, at: dict[str, Value], name: str, start: Value, row: Value, lane: Value, target: Value
) -> None:
    """By one warp: a new head's vector, normed if need be and rotated, and q scaled, to shared memory."""
    count = plan.dim // 32

    def place(i: int) -> Value:
        return ln.add(lane, 32 * i)

    x = [_load(at["qkv"], ln.add(start, place(i)), ln.f32()) for i in range(count)]
    if plan.eps is not None:
        squares = ln.real(0.0)
        for value in x:
            squares = ln.fma(value, value, squares)
        for distance in (1, 2, 4, 8, 16):
            squares = ln.fadd(squares, ln.neighbour(squares, distance))
        mean = ln.fma(squares, ln.real(1 / plan.dim), ln.real(plan.eps))
        factor = ln.reciprocal(ln.root(mean))
        weights = [_load(at[f"{name}_norm"], place(i), ln.f32()) for i in range(count)]
        x = [ln.fmul(ln.fmul(value, factor), weight) for value, weight in zip(x, weights, strict=True)]
    for i, value in enumerate(x):
        ln.store_shared(ln.add(target, ln.mul(place(i), 4)), value)
    ln.warp_barrier()
    rotated = []
    for i, value in enumerate(x):
        is_first, is_turned = ln.less(place(i), plan.half), ln.less(place(i), 2 * plan.half)
        pair = ln.select(is_first, place(i), ln.sub(place(i), plan.half))
        pair = ln.select(is_turned, pair, ln.integer(0))
        other = ln.select(is_first, ln.add(place(i), plan.half), pair)
        (partner,) = ln.load_shared(ln.add(target, ln.mul(other, 4)), 1, real=True)
        index = ln.add(ln.mul(row, plan.half), pair)
        cos, sin = (_load(at[name], index, ln.f32()) for name in ("cos", "sin"))
        turned = ln.fma(value, cos, ln.fmul(partner, ln.select(is_first, ln.fsub(ln.real(0.0), sin), sin)))
        rotated.append(ln.select(is_turned, turned, value))
    ln.warp_barrier()
    for i, value in enumerate(rotated):
        scaled = ln.fmul(value, ln.real(plan.scale * _LOG2E)) if name == "q" else value
        ln.store_shared(ln.add(target, ln.mul(place(i), 4)), scaled)


def _load(base: Value, index: Value, kind: Any) -> Value:
    return ln.ptx("ld.global.b32 $0, [$1];", ln.add(base, ln.mul(ln.wide(index), 4)), result=kind, effect=True)


def _load_row(address: Value, is_seen: Value) -> list[Value]:
    """A lane's numbers, or zeros: what nobody wrote may be no number."""
    return [x for at in (0, 16) for x in ln.load_global(ln.add(address, at), 4, is_seen)]


def _load_shared(address: Value) -> list[Value]:
    return ln.load_shared(address, 4, real=True) + ln.load_shared(address, 4, at=16, real=True)
