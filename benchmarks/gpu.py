"""Speed on a GPU: prompts, generation alone and in batches, scoring, on random weights in the shapes of real models.

    python -m benchmarks.gpu [--models qwen2.5-0.5b:q4_0 qwen2.5-7b:q4_k_m] [--implementation NAME]

pp: a prompt, logits of its last token. tg: greedy generation of 128 tokens behind ``depth`` others, tokens of all rows
together. score: log-probabilities of all tokens of rows x tokens, by one program, whose results are read. Best of some
runs after one that compiles. "kernels": launches in a decode step; "weights": GB/s if a step reads the whole file once
(of an embedding that is not the head as well it reads next to nothing).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import minfer_jax as mj
from benchmarks.random_gguf import write
from benchmarks.record import write_record
from minfer_jax.profiling.workload import Session, score
from minfer_jax.runtime.buckets import MAX_STEPS

MODELS = ("qwen2.5-0.5b:q4_0", "qwen2.5-7b:q4_k_m")
PROMPTS = (16, 300, 512, 2048)
DEPTHS = (0, 4096)
BATCHES = (4, 16, 64)
GRID = ((1, 512), (1, 2048), (16, 512), (32, 512))  # rows, tokens
N_GEN = 128
RUNS = 5


def best(work: Callable[[], Any], ready: Callable[[], Any] = lambda: None) -> float:
    """Least seconds that ``work(ready())`` takes."""
    times = []
    for _ in range(RUNS + 1):
        state = jax.block_until_ready(ready())
        began = time.perf_counter()
        jax.block_until_ready(work() if state is None else work(state))  # pyright: ignore[reportCallIssue]
        times.append(time.perf_counter() - began)
    return min(times[1:])


class Measurement:
    """All numbers of one model."""

    def __init__(self, name: str, implementation: str | None, results: dict[str, Any]) -> None:
        size, mix = name.split(":")
        self._results = results
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"random-{size}-{mix}.gguf"
            write(path, size, mix, context=8192)
            began = time.perf_counter()
            model = mj.load(path, implementation=implementation, n_ctx=8192)
            jax.block_until_ready(model.params)
            self.result = results[name] = {"provenance": model.provenance}
            self._keep("load", time.perf_counter() - began, "s")
            self._packed = path.stat().st_size
        self._runtime = mj.Runtime(model, promotion="off")

    def all(self) -> None:
        for depth in DEPTHS:
            self._try(self.generate, 1, depth)
        for n in PROMPTS:
            self._try(self.prompt, n)
        for rows, n in GRID:
            self._try(self.score, rows, n)
        for batch in BATCHES:
            self._try(self.generate, batch, 0)

    def generate(self, batch: int, depth: int) -> None:
        session = Session(self._runtime, batch, depth, N_GEN)
        seconds = best(session.generate, session.start)
        with self._runtime.trace() as calls:
            session.generate(session.start())
        name = f"tg{N_GEN}" + f" @ d{depth}" * bool(depth) + f" x {batch}" * (batch > 1)
        self._keep(name, batch * N_GEN / seconds, "tok/s")
        if batch == 1 and not depth:
            self._keep(f"{name} kernels", calls[0].kernels / MAX_STEPS, "per step")
            self._keep(f"{name} weights", self._packed * N_GEN / seconds / 1e9, "GB/s")

    def prompt(self, n: int) -> None:
        session = Session(self._runtime, 1, 0, n)
        self._keep(f"pp{n}", n / best(session.prefill), "tok/s")

    def score(self, rows: int, n: int) -> None:
        self._keep(f"score {rows} x {n}", rows * n / best(lambda: score(self._runtime, rows, n)), "tok/s")

    def _try(self, measure: Callable[..., None], *sizes: int) -> None:
        try:
            measure(*sizes)
        except Exception as error:  # the others are measured all the same
            print(f"{measure.__name__} {sizes}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            self.result[f"{measure.__name__} {sizes}"] = str(error)[:300]

    def _keep(self, name: str, value: float, unit: str) -> None:
        self.result[name] = round(value, 3)
        print(f"{name:24}{value:14,.1f} {unit}", flush=True)
        write_record("gpu", self._results, partial=True)  # each, in case the next one dies


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed on a GPU, on random weights in real shapes.")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="SIZE:MIX", help="see benchmarks/random_gguf.py")
    parser.add_argument("--implementation", metavar="NAME", help="argument of load()")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name in args.models:
        print(f"\n{name}", flush=True)
        Measurement(name, args.implementation, results).all()
    print(f"\n{write_record('gpu', results, tuple(results) != MODELS)}")


if __name__ == "__main__":
    main()
