"""One Runtime and many threads: right answers, and one compilation for each key."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from minfer_jax.generation import generate
from minfer_jax.model import Model
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.keys import Shape
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.promises import rounding
from tests.runtime.runs import compiling, pure, run, served

N_THREADS = 8
PROMOTIONS = pytest.mark.parametrize("promotion", ["blocking", "background"])


def at_once(work: Callable[[int], object]) -> list:
    """What ``work`` gives for 0 to 7, all begun at the same moment."""
    barrier = threading.Barrier(N_THREADS)

    def begin(i: int) -> object:
        barrier.wait(60)
        return work(i)

    with ThreadPoolExecutor(N_THREADS) as pool:
        return list(pool.map(begin, range(N_THREADS)))


def until(true: Callable[[], bool]) -> None:
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("a minute has passed")


def runs_of(runtime: Runtime) -> int:
    """Of the only shape."""
    (shape,) = runtime.cache_info().shapes.values()
    return shape.runs


@PROMOTIONS
def test_b_eight_threads_one_compile_per_key(
    promotion, nano: Model, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(nano, promotion=promotion)
    lengths = (5, 6, 20)
    wanted = {n: pure(nano, n) for n in lengths}
    compiled.clear()

    def work(i: int) -> None:
        for n in lengths[i % 3 :] + lengths[: i % 3]:
            np.testing.assert_allclose(run(runtime, n), wanted[n], rtol=0, atol=rounding(nano, 1e-5))

    with compiling(monkeypatch) as asked, runtime.trace() as records:
        for _ in range(3):
            at_once(work)
            runtime.settle()
    assert sorted(a.shape.tokens for a in asked) == [5, 6, 16, 20, 24]
    assert compiled == ["forward_rows"] * 5
    info = runtime.cache_info()
    assert info.compiles + info.disk_hits == 5
    runs = Counter((record.key, record.run) for record in records)
    assert len(runs) == 3 * 3 * N_THREADS and set(runs.values()) == {1}
    for shape in info.shapes.values():
        assert shape.runs == 3 * N_THREADS and shape.promoted
        assert shape.hits == sum(record.promoted for record in records if record.key.endswith("/" + shape.shape))
    assert sum(program.calls for program in info.programs.values()) == 3 * 3 * N_THREADS
    if promotion == "blocking":
        assert all(record.promoted == (record.run >= 3) for record in records)


@PROMOTIONS
def test_b_eight_threads_score_and_generate(promotion, nano: Model) -> None:
    pairs = [([i + 1, 2, 3, *range(i % 2)], [7, 8]) for i in range(N_THREADS)]
    greedy = Sampler(temperature=0)

    def both(model: Model, i: int) -> tuple[float, list[int]]:
        tokens = generate(model, pairs[i][0], max_tokens=5, sampler=greedy, stop_ids=[]).tokens
        return score_tokens(model, [pairs[i]])[0].logprob, tokens

    alone = Runtime(nano, promote_prefill=False)
    wanted = [both(alone, i) for i in range(N_THREADS)]
    shared = Runtime(nano, promotion=promotion)
    for _ in range(4):
        for (logprob, tokens), (right, same) in zip(at_once(lambda i: both(shared, i)), wanted, strict=True):
            assert logprob == pytest.approx(right, abs=rounding(nano, 1e-5)) and tokens == same
    shared.settle()


@PROMOTIONS
def test_b_eight_threads_and_a_promotion_that_fails(
    promotion, nano: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(nano, promotion=promotion)
    wanted = pure(nano, 5)

    def before(shape: Shape) -> None:
        if shape.tokens == 5:
            if promotion == "blocking":  # until the others have arrived
                until(lambda: runs_of(runtime) == 2 + N_THREADS)
            raise jax.errors.JaxRuntimeError("INTERNAL: no")

    served(runtime, 2, 5)
    attempts = []
    for _ in range(2):
        with compiling(monkeypatch, before) as asked:
            for logits in at_once(lambda _: run(runtime, 5)):
                np.testing.assert_allclose(logits, wanted, rtol=0, atol=rounding(nano, 1e-5))
            runtime.settle()
        attempts.append(len(asked))
    assert attempts[0] >= 1 and attempts[1] == 0
    assert len([record for record in caplog.records if "exact shape" in record.getMessage()]) == 1


def test_b_a_thread_that_waits_takes_over_an_interrupted_compilation(
    nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(nano)
    wanted = pure(nano, 5)
    first, release = threading.Event(), threading.Event()

    def before(_: Shape) -> None:
        if not first.is_set():
            first.set()
            assert release.wait(60)
            raise KeyboardInterrupt

    with compiling(monkeypatch, before) as asked, ThreadPoolExecutor(2) as pool:
        interrupted = pool.submit(run, runtime, 5)
        assert first.wait(60)
        waits = pool.submit(run, runtime, 5)
        until(lambda: runs_of(runtime) == 2)
        assert not waits.done()
        release.set()
        with pytest.raises(KeyboardInterrupt):
            interrupted.result(60)
        np.testing.assert_allclose(waits.result(60), wanted, rtol=0, atol=rounding(nano, 1e-5))
    assert [a.shape.tokens for a in asked] == [16, 16]
