"""One kernel for all layers of a decode step.

Its blocks stay, one on each multiprocessor, and do one product after the other. What one product needs of another
comes as mail (see ``pallas_kernels.numbers``), so that a block goes on as soon as the numbers that it reads are there.
Meanwhile the first weights of its next product are on their way: two rooms of shared memory take turns.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import lanes as ln
from pallas_kernels.compat import lane_kernel
from pallas_kernels.decode_attention.kernel import SPLIT, THREADS, Inputs, Team, attend, join, quotient, store_split
from pallas_kernels.decode_layers.plan import TEAMS, Plan
from pallas_kernels.lanes import Value
from pallas_kernels.numbers import Mail, Numbers, Sink
from pallas_kernels.quantised_matmul.plan import BARRIER_BYTES
from pallas_kernels.quantised_matmul.stage import Matrix, Stage


@cache
def kernel(plan: Plan) -> Any:
    """Takes a dictionary of arrays by name (see ``names``), and references to the mail and to the caches, which it
    changes. Gives x [1, K] float32."""
    names = ["position", "first", "windows", "tables", "cos", "sin"] + ["q_norm", "k_norm"] * plan.norms
    for i, product in enumerate(plan.products):
        names += [f"{name}{i}" for name in ("words", "norm", "bias") if name == "words" or getattr(product, name)]

    def decode_layers(*refs: Value) -> None:
        *inputs, mail, keys, values, out, shared = refs
        at = {name: ln.global_address(ref) for name, ref in zip(names, inputs, strict=True)}
        mail, keys, values, out = (ln.global_address(ref) for ref in (mail, keys, values, out))
        _Layers(plan, at, mail, (keys, values), Numbers(out), ln.shared_address(shared)).run()

    call = lane_kernel(
        decode_layers,
        jax.ShapeDtypeStruct((1, plan.down.rows), jnp.float32),
        ctas=plan.ctas,
        warpgroups=plan.warpgroups,
        shared_bytes=plan.shared_bytes,
    )
    return jax.jit(lambda arrays, *refs: call(*(arrays[name] for name in names), *refs))


@dataclass(frozen=True)
class _Result:
    """x of the next layer, or of nobody: then it is the kernel's result, too."""

    mail: Mail
    out: Numbers
    is_last: Value

    def store(self, index: Value, value: Value) -> None:
        self.mail.store(index, value)
        with ln.when(self.is_last):
            self.out.store(index, value)


@dataclass(frozen=True)
class _Layers:
    """plan; i64 addresses of inputs, mail and caches; the result; i32 address of shared memory."""

    plan: Plan
    at: dict[str, Value]
    mail: Value
    caches: tuple[Value, Value]
    out: Numbers
    shared: Value

    def run(self) -> None:
        for i in range(len(self.plan.products)):
            self._stage(i, ln.integer(0)).ring.initialise()
        self._stage(0, ln.integer(0)).ring.start()
        ln.loop(0, self.plan.layers, self._layer)

    def _layer(self, layer: Value) -> None:
        plan = self.plan
        n, after = len(plan.qkv), ln.add(layer, 1)
        stages = [self._stage(i, layer) for i in range(n + 3)] + [self._stage(0, after)]
        x, middle, heads, ffn = (self._mail(name, after) for name in ("x", "middle", "heads", "ffn"))

        def run(i: int, x: Mail, residual: Mail | None, y: Sink) -> None:
            """Product i. Weights of the next are asked for at once by who has nothing to do, else when it is done:
            starting copies takes time, and others may be waiting for the result."""
            stage, following = stages[i], stages[i + 1]
            with ln.when(ln.equal(ln.flag(stage.place.is_idle), 0)):
                stage.run(x, residual, y)
                ln.fence_copies()
            if i < n + 2:
                following.ring.start()
            else:
                with ln.when(ln.less(after, plan.layers)):
                    following.ring.start()
            with ln.when(ln.less(ln.integer(0), stage.place.units)):
                ln.barrier()

        for i in range(n):
            run(i, x, None, self._mail("qkv", after, plan.first_rows[i]))
        self._attend(layer, heads)
        run(n, heads, x, middle)
        run(n + 1, middle, None, ffn)
        result = _Result(self._mail("x", ln.add(after, 1)), self.out, ln.equal(after, plan.layers))
        run(n + 2, ffn, middle, result)

    def _mail(self, name: str, tag: Value, first: int = 0) -> Mail:
        return Mail(ln.add(self.mail, 8 * (self.plan.mail_at[name] + first)), tag)

    def _stage(self, i: int, layer: Value) -> Stage:
        plan, product = self.plan, self.plan.products[i]
        addresses = (self.at.get(f"{name}{i}") for name in ("words", "norm", "bias"))
        matrix = Matrix(*addresses).layer(product, layer)
        room = ln.add(self.shared, plan.rooms[0] if i % 2 else 0)
        cta = self._counted_from(plan.first_ctas[i])
        barriers = ln.add(self.shared, plan.barriers_at + i * BARRIER_BYTES)
        return Stage.repeated(product, matrix, room, cta, i, barriers, layer)

    def _counted_from(self, first: int) -> Value:
        """The block's index if that block has 0."""
        ctas = self.plan.ctas
        return ln.rem(ln.add(ln.cta(), ctas - first), ctas) if first % ctas else ln.cta()

    def _attend(self, layer: Value, heads: Mail) -> None:
        """Heads and splits go round the teams of all blocks; splits beyond the position are left out.

        If there are more than blocks, the teams of a block have neighbouring heads of one split, which read the same
        keys and values at about the same time: once from the second-level cache.
        """
        plan, at = self.plan, self.at
        size, zero = plan.attention, ln.integer(0)
        position, first_layer = (ln.load_index(at[name]) for name in ("position", "first"))
        table, window = (ln.load_index(ln.offset(at[name], ln.mul(layer, 4))) for name in ("tables", "windows"))
        splits = ln.add(ln.div(ln.least(position, plan.length - 1), SPLIT), 1)
        is_whole = ln.equal(splits, 1)
        cos, sin = (ln.offset(at[name], ln.mul(table, 4 * plan.half)) for name in ("cos", "sin"))
        q_norm, k_norm = (
            ln.offset(at[name], ln.mul(layer, 4 * plan.dim)) if plan.norms else None for name in ("q_norm", "k_norm")
        )
        keys, values = self.caches
        own_layer, qkv = ln.add(first_layer, layer), self._mail("qkv", heads.tag)
        inputs = Inputs(qkv, cos, sin, position, window, own_layer, keys, values, q_norm, k_norm)
        parts = self._mail("splits", heads.tag)
        own = ln.div(ln.thread(), THREADS)
        shared = ln.add(self.shared, ln.add(ln.mul(own, plan.attention_bytes), plan.attention_at))
        barrier = lambda: ln.group_barrier(1, THREADS, own, TEAMS)  # noqa: E731
        team = Team(ln.rem(ln.thread(), THREADS), shared, barrier)

        def start(head: Value, split: Value | int) -> Value:
            """Where a split begins."""
            return ln.mul(ln.add(ln.mul(head, size.splits), split), plan.dim + 2)

        def one(item: Value) -> None:
            split = ln.div(item, plan.heads)
            head = ln.sub(item, ln.mul(split, plan.heads))

            def give(place: Value, value: Value, total: Value, most: Value) -> None:
                with ln.when(is_whole):
                    heads.store(ln.add(ln.mul(head, plan.dim), place), quotient(value, total))
                with ln.when(ln.less(ln.integer(1), splits)):
                    store_split(size, parts, start(head, split), place, value, total, most)

            attend(size, inputs, team, zero, head, split, give)
            barrier()

        def joined(head: Value) -> None:
            with ln.when(ln.less(ln.thread(), plan.dim)):
                value = join(size, parts, start(head, 0), splits, ln.thread())
                heads.store(ln.add(ln.mul(head, plan.dim), ln.thread()), value)

        cta, count = self._counted_from(plan.attention_cta), ln.mul(splits, plan.heads)
        spread, packed = ln.add(ln.mul(own, plan.ctas), cta), ln.add(ln.mul(cta, TEAMS), own)
        few = ln.less(count, plan.ctas + 1)
        _share(ln.select(few, spread, packed), TEAMS * plan.ctas, count, one)
        _share(cta, plan.ctas, ln.select(is_whole, zero, ln.integer(plan.heads)), joined)


def _share(own: Value, sharers: int, count: Value, work: Any) -> None:
    """work(i) for every i < count that falls to sharer ``own``."""
    turns = ln.div(ln.sub(ln.add(count, sharers - 1), own), sharers)
    ln.loop(0, turns, lambda turn: work(ln.add(ln.mul(turn, sharers), own)))
