"""What each part of the runtime takes off a decode step (or a prefill), switched on and off in turns in one process.

    python -m benchmarks.overhead [MODEL] [implementation] [dtype]

MODEL: a path or name, of layers that are alike in format; without one a file of random weights in the shapes of
Qwen2.5-0.5B Q4_0 is written and used. Every variant of a pair does the same work and waits for it. Times are medians in
microseconds, per token for decoding.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import minfer_jax as mj
from benchmarks.interleaved import interleaved, medians
from benchmarks.random_gguf import write
from benchmarks.record import write_record
from minfer_jax.models.params import Params
from minfer_jax.profiling.workload import GREEDY, Session
from minfer_jax.runtime import decode, jitted
from minfer_jax.runtime.buckets import MAX_STEPS
from minfer_jax.runtime.program_cache import PROMOTE_AT
from minfer_jax.runtime.readback import Route

REPETITIONS = {"cpu": 15, "gpu": 100}
LENGTH = 512  # of the KV cache


class Step:
    """One decode step after another, each from the cache that the last one left."""

    def __init__(self, model: mj.Model, run: Callable[[Any, np.ndarray, np.ndarray], tuple[Any, Any]]) -> None:
        self._run = run
        self._cache = mj.init_cache(model.config, 1, LENGTH)
        self._position = 0

    def __call__(self) -> None:
        position = np.array([[self._position % LENGTH]], np.int32)
        out, self._cache = self._run(self._cache, np.array([[5]], np.int32), position)
        jax.block_until_ready(out)
        self._position += 1


@contextmanager
def switched(name: str | None) -> Iterator[None]:
    if name is not None:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if name is not None:
            del os.environ[name]


def own_jit(function: Any, static: Sequence[str], donate: Sequence[str]) -> Any:
    """A program of the runtime, with a jit of its own: that of the runtime is emptied with each compilation."""
    options = jitted.COMPILER_OPTIONS
    return jax.jit(function.__wrapped__, static_argnames=static, donate_argnames=donate, compiler_options=options)


def step_program(model: mj.Model, params: Params, donate: Sequence[str] = ("cache",)) -> Step:
    """A step whose logits stay on the device."""
    call = partial(own_jit(jitted.forward_rows, ("config", "destination"), donate), config=model.config)
    return Step(model, lambda cache, token, position: call(params, token, position, cache, None, destination=None))


def readback(model: mj.Model, repetitions: int) -> dict[str, float]:
    """A step whose logits the host reads, by each route; "program" is the step alone, with nothing read."""

    def by(route: str | None, switch: str | None = None) -> Step:
        runtime = mj.Runtime(model, readback=route)

        def run(cache: Any, token: np.ndarray, position: np.ndarray) -> tuple[Any, Any]:
            with switched(switch):
                return runtime.forward(token, position, cache)

        return Step(model, run)

    variants = {
        "program": step_program(model, model.params),
        "ffi": by("ffi"),
        "pinned_host": by("pinned_host"),
        "MINFER_NO_PINNED_READBACK=1": by(None, "MINFER_NO_PINNED_READBACK"),
    }
    return medians(interleaved(variants, repetitions))


def promotion(model: mj.Model, repetitions: int, n: int) -> dict[str, float]:
    """A prompt of n tokens by its bucket and by its own program."""
    tokens, positions = np.full((1, n), 5, np.int32), np.arange(n, dtype=np.int32)[None]
    tail = np.array([n - 1], np.int32)

    def by(promote: bool) -> Step:
        runtime = mj.Runtime(model, promotion="blocking", promote_prefill=promote)
        step = Step(model, lambda cache, *_: runtime.prefill(tokens, positions, cache, tail))
        for _ in range(PROMOTE_AT):
            step()
        return step

    return medians(interleaved({"bucket": by(False), "promoted": by(True)}, repetitions))


def donation(model: mj.Model, repetitions: int) -> dict[str, float]:
    """A step that writes into the cache it was given, and one that must copy it."""
    variants = {"copied": step_program(model, model.params, ()), "donated": step_program(model, model.params)}
    return medians(interleaved(variants, repetitions))


def stacking(model: mj.Model, repetitions: int) -> dict[str, float]:
    """A step whose layers come as separate arguments, and stacked."""
    layers = tuple(
        jax.tree.map(lambda stacked, i=i: stacked[i : i + 1], run)
        for run in model.params.runs
        for i in range(run.attn_norm.shape[0])
    )
    apart = replace(model.params, runs=layers)
    variants = {"separate": step_program(model, apart), "stacked": step_program(model, model.params)}
    return medians(interleaved(variants, repetitions)) | {
        "separate_arguments": len(jax.tree.leaves(apart)),
        "stacked_arguments": len(jax.tree.leaves(model.params)),
    }


class Chunks:
    """Generation as ``generate`` does it, ``steps`` tokens per program call, each of whose tokens are read."""

    def __init__(
        self,
        model: mj.Model,
        steps: int,
        length: int = LENGTH,
        early_exit: bool = False,
        greedy: bool | None = True,
        readback: Route = "plain",
    ) -> None:
        vocab = model.config.vocab_size
        self._steps = steps
        self._cache = mj.init_cache(model.config, 1, length)
        self._state = decode.start_state([[5]], [1 << 30], 1, vocab)
        settings, ends = jax.device_put((GREEDY.settings(vocab, 0), np.zeros(vocab, bool)))
        sizes = {"config": model.config, "steps": steps, "early_exit": early_exit, "greedy": greedy}
        sizes["readback"] = readback
        program = partial(own_jit(decode.decode, tuple(sizes), ("cache", "state")), **sizes)
        going = np.zeros(1, bool)
        self._decode = lambda *kept: program(model.params, np.int32(steps), *kept, settings, ends, going)

    def queue(self) -> Any:
        """One program call; its results are not waited for."""
        self._cache, self._state, out = self._decode(self._cache, self._state)
        return out

    def __call__(self) -> None:
        """MAX_STEPS tokens."""
        for _ in range(MAX_STEPS // self._steps):
            jax.device_get(self.queue())


def chunking(model: mj.Model, repetitions: int) -> dict[str, float]:
    """A token per program call, and many. asked: the program asks the device whether to sample. pinned_host: the tokens
    come back by that route."""
    variants = {
        "1": Chunks(model, 1),
        "8": Chunks(model, 8),
        str(MAX_STEPS): Chunks(model, MAX_STEPS),
        f"{MAX_STEPS} asked": Chunks(model, MAX_STEPS, greedy=None),
        f"{MAX_STEPS} pinned_host": Chunks(model, MAX_STEPS, readback="pinned_host"),
    }
    return {
        name: round(value / MAX_STEPS, 1)
        for name, value in medians(interleaved(variants, max(3, repetitions // 5))).items()
    }


def host_cost(model: mj.Model, chunks: int) -> dict[str, float]:
    """Per token of a chunked generation: wall time with every chunk read, and the device's, by chunks of the same
    program that are queued without reading any. Their difference is what the host costs."""
    runtime = mj.Runtime(model, promotion="blocking")
    session = Session(runtime, 1, 0, chunks * MAX_STEPS)
    asks = runtime.early_exit
    route = "plain" if asks else "pinned_host"
    queued = Chunks(model, MAX_STEPS, session.cache.length, asks, None if asks else True, route)
    walls, devices = [], []
    for _ in range(4):
        state = session.start()
        start = time.perf_counter()
        session.generate(state)
        walls.append((time.perf_counter() - start) / chunks / MAX_STEPS)
        jax.block_until_ready(queued.queue())
        start = time.perf_counter()
        jax.block_until_ready([queued.queue() for _ in range(chunks)])
        devices.append((time.perf_counter() - start) / chunks / MAX_STEPS)
    wall, device = min(walls[1:]) * 1e6, min(devices[1:]) * 1e6
    return {"wall": round(wall, 1), "device": round(device, 1), "host": round(wall - device, 1)}


def main() -> None:
    name, implementation, dtype = [*sys.argv[1:], None, None, None][:3]
    backend = jax.default_backend()
    repetitions = REPETITIONS[backend]
    with tempfile.TemporaryDirectory() as folder:
        if not name:
            write(Path(folder) / "random-qwen2.5-0.5b-q4_0.gguf", "qwen2.5-0.5b", "q4_0", context=1024)
            name = str(next(Path(folder).iterdir()))
        model = mj.load(name, implementation=implementation, dtype=dtype, n_ctx=1024)
        results: dict[str, Any] = {"model": repr(model), "repetitions": repetitions}
        cases = {
            "readback": lambda: readback(model, repetitions),
            "promotion_pp16": lambda: promotion(model, repetitions, 16),
            "promotion_pp300": lambda: promotion(model, repetitions, 300),
            "donation": lambda: donation(model, repetitions),
            "stacking": lambda: stacking(model, repetitions),
            "chunking": lambda: chunking(model, repetitions),
            "host_cost": lambda: host_cost(model, 20 if backend == "gpu" else 4),
        }
        for case, measure in cases.items():
            results[case] = measure()
            print(case, results[case], flush=True)
    print(write_record(f"overhead_{backend}_{model.provenance['dtype']}", results))


if __name__ == "__main__":
    main()
