"""Measuring throughput in the vocabulary of llama-bench: pp (a prompt goes in) and tg (text comes out)."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

import jax

from minfer_jax.model import Model
from minfer_jax.models.cache import KVCache
from minfer_jax.models.params import Params
from minfer_jax.profiling.workload import Session
from minfer_jax.quant import QuantTensor, Weight
from minfer_jax.quant.fragments import MOST_ROWS, Fragments
from minfer_jax.records import Record
from minfer_jax.runtime.program_cache import PROMOTE_AT
from minfer_jax.runtime.runtime import CacheInfo, Runtime

UNTIMED = PROMOTE_AT
"""Runs before those that are timed: a shape has its own program from then on, and the last one is the warm-up."""


@dataclass(frozen=True)
class BenchCase:
    """Either n_prompt tokens as a prompt, or n_gen tokens generated, in each of ``batch`` sequences, behind ``depth``
    tokens that are in the KV cache already."""

    n_prompt: int
    n_gen: int
    depth: int
    batch: int

    def __str__(self) -> str:
        work = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return work + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True)
class Measurement(Record):
    """samples_ts: tokens per second of all sequences together, in each repetition; avg_ts, stddev_ts: their mean and
    sample standard deviation.

    compile_s: seconds in which the programs of the test were compiled or read from disk, before the warm-up;
    programs: how many there were; programs_from_disk: how many of them the persistent cache had.
    kernels: launches of device work, for pp in the whole run, for tg in one step.
    step_bytes: what a step of tg must read at least (see ``step_bytes``), on average over the test; None for pp.
    """

    test: str
    n_prompt: int
    n_gen: int
    n_depth: int
    batch: int
    avg_ts: float
    stddev_ts: float
    samples_ts: list[float]
    compile_s: float
    programs: int
    programs_from_disk: int
    kernels: int
    step_bytes: float | None

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that generation must have read; None for pp."""
        return None if self.step_bytes is None else self.step_bytes * self.avg_ts / self.batch


def measure(runtime: Runtime, test: BenchCase, repetitions: int, on_run: Callable[[], object]) -> Measurement:
    """Run a test UNTIMED times, then ``repetitions`` times by the clock. runtime: with blocking promotion.
    on_run: called after every run.

    Of a prompt only the last token's logits are computed. Generated tokens are chosen greedily on the device and read
    as ``generate`` reads them, many at a time. Raises ContextLengthError when the test does not fit the context window.
    """
    session = Session(runtime, test.batch, test.depth, test.n_prompt or test.n_gen)
    before = runtime.cache_info()
    for _ in range(UNTIMED - 1):
        _run(session, test)
        on_run()
    with runtime.trace() as records:
        _, taken = _run(session, test)
    on_run()
    compiled = _compiled(before, runtime.cache_info())
    kernels = sum(record.kernels for record in records)
    if test.n_gen:  # a loop of unknown length counts once
        kernels = records[0].kernels if runtime.early_exit else round(records[0].kernels / taken[0])
    tokens = test.batch * (test.n_prompt or test.n_gen)
    samples = []
    for _ in range(repetitions):
        samples.append(tokens / _run(session, test)[0])
        on_run()
    return Measurement(
        test=str(test),
        n_prompt=test.n_prompt,
        n_gen=test.n_gen,
        n_depth=test.depth,
        batch=test.batch,
        avg_ts=mean(samples),
        stddev_ts=stdev(samples) if repetitions > 1 else 0.0,
        samples_ts=samples,
        kernels=kernels,
        step_bytes=step_bytes(runtime, session.cache, test) if test.n_gen else None,
        **compiled,
    )


def _run(session: Session, test: BenchCase) -> tuple[float, list[int]]:
    """Seconds of one run, and the steps of each program call where it generates."""
    state = session.start() if test.n_gen else None
    jax.block_until_ready((session.cache, state))
    began = time.perf_counter()
    if state is None:
        taken = []
        jax.block_until_ready(session.prefill())
    else:
        taken = session.generate(state)
    return time.perf_counter() - began, taken


def _compiled(before: CacheInfo, after: CacheInfo) -> dict[str, Any]:
    new = [program for name, program in after.programs.items() if name not in before.programs]
    return {
        "compile_s": sum(program.compile_seconds for program in new),
        "programs": len(new),
        "programs_from_disk": sum(program.from_disk for program in new),
    }


def step_bytes(model: Model, cache: KVCache, test: BenchCase) -> float:
    """Least bytes that a step reads, on average over the steps of a tg test: every weight once, as it lies in memory
    (of an embedding that is not the head as well, next to nothing), and the keys and values that a token looks at."""
    params = model.params
    if params.embedding.implementation == "pallas":
        weights = _gpu_bytes(params, test.batch <= MOST_ROWS)
    else:
        weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        if params.head is not None:
            weights -= params.embedding.nbytes
    layers, rows, _, length, _ = cache.k.shape
    slot = (cache.k.nbytes + cache.v.nbytes) / (layers * rows * length)
    looked_at = mean(
        sum(min(n, window or n) for window in model.config.windows)
        for n in range(test.depth + 1, test.depth + test.n_gen + 1)
    )
    return weights + test.batch * slot * looked_at


def _gpu_bytes(params: Params, packed: bool) -> int:
    """Of the matrices: packed where GPU kernels multiply with them, else expanded."""
    matrices: list[Weight | Fragments] = [params.embedding if params.head is None else params.head]
    for run in params.runs:
        for joined, parts in ((run.qkv, (run.q, run.k, run.v)), (run.gate_up, (run.gate, run.up))):
            matrices += [joined] if packed and joined is not None else parts
        matrices += [run.o, run.down]
    return sum(_matrix_bytes(m, packed) for m in matrices)


def _matrix_bytes(matrix: Weight | Fragments, packed: bool) -> int:
    if isinstance(matrix, QuantTensor):
        matrix = matrix.fragments if packed and matrix.fragments else replace(matrix, fragments=None)
    return sum(leaf.nbytes for leaf in jax.tree.leaves(matrix))
