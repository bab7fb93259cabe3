"""Table B: programs that are dropped, do not compile, or run out of memory."""

import jax
import numpy as np
import pytest

from minfer_jax.generation import generate_batch
from minfer_jax.model import Model
from minfer_jax.runtime import Runtime, decode
from minfer_jax.runtime.keys import Shape
from minfer_jax.runtime.program import Program
from tests.promises import rounding
from tests.runtime.runs import GREEDY, PROMOTIONS, compiling, lengths, pure, run, served, size, warned

# -- bounds


def test_b_the_least_recently_used_program_goes_first(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promote_prefill=False, max_programs=2)

    def kept() -> list[int]:
        return [size(name, "t") for name in runtime.cache_info().programs]

    wanted = pure(nano, 20)
    compiled.clear()
    for n in (16, 20, 16):
        run(runtime, n)
    assert kept() == [24, 16] and runtime.cache_info().evictions == 0
    run(runtime, 32)
    assert kept() == [16, 32] and runtime.cache_info().evictions == 1
    assert compiled == ["forward_rows"] * 3
    np.testing.assert_allclose(run(runtime, 20), wanted, rtol=0, atol=rounding(nano, 1e-5))
    assert kept() == [32, 24] and runtime.cache_info().evictions == 2
    assert compiled == ["forward_rows"] * 4
    run(runtime, 32)
    assert compiled == ["forward_rows"] * 4


@PROMOTIONS
def test_b_a_promoted_shape_that_was_dropped_works_again(promotion, nano: Model) -> None:
    runtime = Runtime(nano, promotion=promotion, max_programs=2)
    wanted = pure(nano, 5)
    for n in (5, 5, 5, 20, 32, 5, 5):
        logits = run(runtime, n)
        runtime.settle()
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=rounding(nano, 1e-5))
    assert served(runtime, 1, 5)[0].promoted
    assert len(runtime.cache_info().programs) == 2 and runtime.cache_info().evictions >= 3


def test_b_programs_are_bounded_by_their_bytes(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Program.__init__

    def sized(self: Program, shape: Shape, *rest) -> None:
        init(self, shape, *rest)
        self.device_bytes = 10 * shape.tokens

    monkeypatch.setattr(Program, "__init__", sized)
    runtime = Runtime(nano, promote_prefill=False, max_program_bytes=500)
    for n, kept in ((16, [16]), (24, [16, 24]), (16, [24, 16]), (32, [16, 32]), (48, [48]), (64, [64]), (16, [16])):
        run(runtime, n)
        assert [size(name, "t") for name in runtime.cache_info().programs] == kept
    assert runtime.cache_info().evictions == 5


def test_b_what_is_dropped_is_freed(nano: Model) -> None:
    """Executables that XLA holds, as its client counts them."""
    jax.clear_caches()
    client = jax.devices()[0].client
    runtime = Runtime(nano, promote_prefill=False, max_programs=1)
    run(runtime, 16)
    held = len(client.live_executables())
    for n in (24, 32, 48):
        run(runtime, n)
    assert len(client.live_executables()) <= held
    del runtime
    assert len(client.live_executables()) < held


# -- failures


@PROMOTIONS
@pytest.mark.parametrize("reason", ["INTERNAL: ptxas died", "RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"])
def test_b_a_promotion_that_does_not_compile(
    reason: str, promotion, nano: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(nano, promotion=promotion)
    wanted = pure(nano, 5)

    def before(shape: Shape) -> None:
        if shape.tokens == 5:
            raise jax.errors.JaxRuntimeError(f"{reason}\nand a long story")

    with compiling(monkeypatch, before) as asked:
        for _ in range(7):
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=rounding(nano, 1e-5))
            runtime.settle()
        assert lengths(runtime, 1, 5) == [16]
    assert [a.shape.tokens for a in asked] == [16, 5]
    (line,) = warned(caplog)
    assert reason in line and " t5 " in line and " t16 " in line and "\n" not in line
    (info,) = runtime.cache_info().shapes.values()
    assert info.failed and not info.promoted and info.hits == 0 and info.runs == 8
    served(runtime, 3, 6)
    runtime.settle()
    assert lengths(runtime, 1, 6) == [6]  # another shape has its own chance


@PROMOTIONS
def test_b_a_promoted_program_that_runs_out_of_memory(
    promotion, nano: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(nano, promotion=promotion)
    wanted = pure(nano, 5)
    call, failures = Program.__call__, []

    def short(self: Program, *args):
        if self.shape.tokens == 5:
            failures.append(self)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
        return call(self, *args)

    monkeypatch.setattr(Program, "__call__", short)
    with compiling(monkeypatch) as asked, runtime.trace() as records:
        for _ in range(7):
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=rounding(nano, 1e-5))
            runtime.settle()
    assert len(failures) == 1 and [a.shape.tokens for a in asked] == [16, 5]
    assert [(r.run, size(r.program, "t"), r.promoted) for r in records] == [(i, 16, False) for i in range(1, 8)]
    (line,) = warned(caplog)
    assert "RESOURCE_EXHAUSTED" in line
    (info,) = runtime.cache_info().shapes.values()
    assert info.failed and not info.promoted


@PROMOTIONS
def test_b_no_memory_to_drop_the_rows_of_padding(
    promotion, nano: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The promoted program of three prompts is there, the copy of the cache that it needs is not."""
    runtime = Runtime(nano, promotion=promotion)
    prompts = [[5, 6, 7], [8, 9], [10]]

    def texts() -> list[list[int]]:
        outs = generate_batch(runtime, prompts, max_tokens=5, sampler=GREEDY, stop_ids=[])
        runtime.settle()
        return [out.tokens for out in outs]

    first = [texts(), texts()]
    rows = decode.first_rows

    def short(cache, state, rows_wanted=None, **more):
        if isinstance(cache.k, jax.core.Tracer):
            return rows(cache, state, **more)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

    monkeypatch.setattr(decode, "first_rows", short)
    assert [texts() for _ in range(4)] == [first[0]] * 4
    (line,) = warned(caplog)
    assert "RESOURCE_EXHAUSTED" in line and "decode b3" in line
    (info,) = [s for s in runtime.cache_info().shapes.values() if s.shape.startswith("decode b3")]
    assert info.failed and not info.promoted and info.hits == 0


def test_b_a_bucket_that_fails_is_the_callers_to_see(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(nano)

    def before(_: Shape) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    with compiling(monkeypatch, before), pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        run(runtime, 5)
    np.testing.assert_allclose(run(runtime, 5), pure(nano, 5), rtol=0, atol=rounding(nano, 1e-5))


def test_b_an_interrupted_compilation_leaves_the_key_usable(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(nano, promotion="blocking")
    wanted = pure(nano, 5)
    to_interrupt = {16, 5}

    def before(shape: Shape) -> None:
        if shape.tokens in to_interrupt:
            to_interrupt.remove(shape.tokens)
            raise KeyboardInterrupt

    with compiling(monkeypatch, before) as asked:
        with pytest.raises(KeyboardInterrupt):
            run(runtime, 5)
        run(runtime, 5)
        with pytest.raises(KeyboardInterrupt):
            run(runtime, 5)
        np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=rounding(nano, 1e-5))
    assert [a.shape.tokens for a in asked] == [16, 16, 5, 5]
    (info,) = runtime.cache_info().shapes.values()
    assert info.promoted and not info.failed
