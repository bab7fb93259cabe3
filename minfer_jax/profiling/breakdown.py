"""Where the time of a decode step goes, and a record of every program call on the way there."""

import time
from dataclasses import dataclass
from statistics import mean

import numpy as np

from minfer_jax.profiling.workload import GREEDY, check_room, random_ids, score
from minfer_jax.records import Record
from minfer_jax.runtime.buckets import MAX_STEPS
from minfer_jax.runtime.decoder import Decoder
from minfer_jax.runtime.program_cache import PROMOTE_AT
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.runtime.trace import TraceRecord


@dataclass(frozen=True)
class Breakdown(Record):
    """One decode step in microseconds: the mean of the middle half of ``samples`` steps, ordered by their total, so
    that an odd step does not count and the parts add up, which medians do not.

    dispatch_us: until the program call returned to Python. device_us: from then until its results were there.
    readback_us: bringing them to the host. sampling_us: from the logits on the host to the token there; None where
    the device draws the token as part of the program. other_us: what is left of the total.
    """

    samples: int
    dispatch_us: float
    device_us: float
    readback_us: float
    sampling_us: float | None
    other_us: float
    total_us: float


@dataclass(frozen=True)
class TracedWork(Record):
    """records: of every program call, in order. step: a decode step whose logits the host reads. token: one token of
    generation in portions of many."""

    records: list[TraceRecord]
    step: Breakdown
    token: Breakdown


def trace_work(runtime: Runtime, n_prompt: int, n_gen: int) -> TracedWork:
    """Generate n_gen >= 2 tokens after a prompt, score as many tokens as it has, and generate again with the logits on
    the host at every step; all of it as often as a shape runs before it is promoted.

    Every program is waited for, which takes longer than generation does. What is compiled on the first pass is left
    out of the breakdowns. Raises ContextLengthError when prompt and output do not fit the context window.
    """
    check_room(runtime.config, n_prompt + n_gen)
    records: list[TraceRecord] = []
    steps: list[list[float]] = []
    tokens: list[list[float]] = []
    for number in range(PROMOTE_AT):
        portions = _generate(runtime, n_prompt, n_gen, False, records)
        with runtime.trace(block=True) as scored:
            score(runtime, 1, n_prompt)
        records += scored
        singles = _generate(runtime, n_prompt, n_gen, True, records)
        if number > 0:
            tokens += portions
            steps += singles
    return TracedWork(records, _breakdown(steps, sampled=True), _breakdown(tokens, sampled=False))


def _generate(
    runtime: Runtime, n_prompt: int, n_gen: int, on_host: bool, records: list[TraceRecord]
) -> list[list[float]]:
    """One generation; seconds per token of each program call behind the prompt: dispatch, device, readback, sampling,
    and all of it."""
    vocab = runtime.config.vocab_size
    logits_there = 0.0

    def note(_: int, logits: np.ndarray) -> np.ndarray:
        nonlocal logits_there
        logits_there = time.perf_counter()
        return logits

    prompt = random_ids(runtime.config, 1, n_prompt)[0].tolist()
    process = note if on_host else None
    decoder = Decoder(runtime, [prompt], [n_gen], GREEDY.settings(vocab, 0), np.zeros(vocab, bool), process)
    costs: list[list[float]] = []
    done = 0
    while done < n_gen:
        with runtime.trace(block=True) as new:
            began = time.perf_counter()
            n = len(decoder.next(MAX_STEPS, np.zeros(1, bool))[0])
            ended = time.perf_counter()
        records += new
        if done:
            (call,) = new
            parts = [us / 1e6 for us in (call.dispatch_us, call.device_us or 0, call.readback_us or 0)]
            costs.append([x / n for x in (*parts, ended - logits_there if on_host else 0.0, ended - began)])
        done += n
    return costs


def _breakdown(costs: list[list[float]], sampled: bool) -> Breakdown:
    ordered, aside = sorted(costs, key=lambda cost: cost[-1]), len(costs) // 4
    middle = ordered[aside : len(costs) - aside]
    *parts, total = (1e6 * mean(column) for column in zip(*middle, strict=True))
    dispatch, device, readback, sampling = parts
    other = total - sum(parts)
    return Breakdown(len(costs), dispatch, device, readback, sampling if sampled else None, other, total)
