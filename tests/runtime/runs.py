"""Token runs for the tests, and what the pure forward makes of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from minfer_jax.model import Model
from minfer_jax.models import KVCache, forward
from minfer_jax.runtime import Runtime, TraceRecord
from minfer_jax.runtime import runtime as runtime_module
from minfer_jax.runtime.keys import Shape
from minfer_jax.runtime.program import Program
from minfer_jax.sampling import Sampler

GREEDY = Sampler(temperature=0)
NO_PREFILL = "MINFER_NO_PREFILL_CAPTURE"
PROMOTIONS = pytest.mark.parametrize("promotion", ["blocking", "background"])


def tokens(n: int, batch: int = 1) -> np.ndarray:
    """int32 [batch, n], ids that every tiny vocabulary has."""
    return np.random.default_rng(n).integers(0, 200, (batch, n), np.int32)


def places(n: int, batch: int = 1, start: int = 0) -> np.ndarray:
    """Positions int32 [batch, n] of a run that begins at ``start``."""
    return np.tile(np.arange(start, start + n, dtype=np.int32), (batch, 1))


def run(runtime: Runtime, n: int, batch: int = 1, cache: KVCache | None = None, tail_ids=None) -> np.ndarray:
    """Logits of a run of n tokens, an array of the caller's own."""
    return runtime.forward(tokens(n, batch), places(n, batch), cache, tail_ids, copy=True)[0]


def pure(model: Model, n: int, batch: int = 1) -> np.ndarray:
    """The same by the pure function, at exactly that shape."""
    return np.asarray(forward(model.params, model.config, tokens(n, batch), places(n, batch))[0])


def served(runtime: Runtime, n_runs: int, n: int, **more) -> list[TraceRecord]:
    """Records of ``n_runs`` runs of n tokens."""
    with runtime.trace() as records:
        for _ in range(n_runs):
            run(runtime, n, **more)
    return records


class Asked(NamedTuple):
    """A program that a Runtime set out to compile."""

    shape: Shape
    function: Any
    args: Sequence[Any]
    static: dict[str, Any]

    @property
    def lowered(self) -> str:
        """The module before XLA's optimisation."""
        return self.function.lower(*self.args, **self.static).as_text()


def nothing(_: Shape) -> None: ...


@contextmanager
def compiling(patch: pytest.MonkeyPatch, before: Callable[[Shape], None] = nothing) -> Iterator[list[Asked]]:
    """What Runtimes set out to compile; ``before`` is called with each shape, in the thread that compiles."""
    asked: list[Asked] = []
    compile_program = runtime_module.compile_program

    def spied(*what) -> Program:
        asked.append(Asked(*what[:4]))
        before(what[0])
        return compile_program(*what)

    with patch.context() as inner:
        inner.setattr(runtime_module, "compile_program", spied)
        yield asked


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said about promotion."""
    return [m for m in (record.getMessage() for record in caplog.records) if "exact shape" in m]


def size(text: str, letter: str) -> int:
    """A size in the name of a shape."""
    found = re.search(rf" {letter}(\d+)", text)
    assert found is not None, text
    return int(found[1])


def lengths(runtime: Runtime, n_runs: int, n: int, **more) -> list[int]:
    """Tokens of the programs that served each run of n tokens."""
    return [size(record.program, "t") for record in served(runtime, n_runs, n, **more)]
