"""Table B: the three-run protocol and its switches, in the foreground and in the background."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from minfer_jax.generation import generate_batch
from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.keys import Shape
from minfer_jax.scoring import score_tokens
from tests.promises import rounding
from tests.runtime.runs import GREEDY, NO_PREFILL, compiling, lengths, places, pure, run, served, size, tokens
from tests.stderr import errors

# -- the protocol


def test_b_three_run_protocol(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking")
    wanted = pure(nano, 5)
    compiled.clear()
    programs = []
    for _ in range(5):
        with runtime.trace() as records:
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=rounding(nano, 1e-5))
        (record,) = records
        programs.append((record.run, size(record.program, "t"), record.promoted, len(compiled)))
    assert programs == [(1, 16, False, 1), (2, 16, False, 1), (3, 5, True, 2), (4, 5, True, 2), (5, 5, True, 2)]
    assert set(compiled) == {"forward_rows"}


def test_b_one_shot_shapes_compile_nothing_of_their_own(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking")
    for n in (*range(17, 25), *range(17, 25)):
        assert lengths(runtime, 1, n) == [24]
    assert compiled == ["forward_rows"]
    assert runtime.cache_info().compiles + runtime.cache_info().disk_hits == 1


def test_b_positive_the_third_run_promotes_exactly_that_shape(nano: Model) -> None:
    """By default and for every kind; a neighbour that ran twice is left alone."""
    runtime = Runtime(nano, promotion="blocking")
    pair = [([1, 2], [3, 4, 5])]
    served(runtime, 2, 6)
    assert lengths(runtime, 3, 5) == [16, 16, 5]
    assert lengths(runtime, 3, 5, batch=3) == [16, 16, 5]
    assert [size(r.program, "b") for r in served(runtime, 2, 5, batch=3)] == [3, 3]
    with runtime.trace() as records:
        cache = init_cache(nano.config, 1, 32)
        for _ in range(3):
            _, cache = runtime.forward(tokens(5), places(5), cache)
        scores = [score_tokens(runtime, pair)[0].logprob for _ in range(3)]
    assert [size(r.program, "t") for r in records] == [16, 16, 5, 16, 16, 4]
    assert scores[2] == pytest.approx(scores[0], abs=rounding(nano, 1e-5))
    promoted = [s.shape for s in runtime.cache_info().shapes.values() if s.promoted]
    assert [(size(s, "b"), size(s, "t"), size(s, "c")) for s in promoted] == [
        (1, 5, 0),
        (3, 5, 0),
        (1, 5, 32),
        (1, 4, 0),
    ]


def test_b_negative_no_prefill_shape_is_promoted_after_five_runs(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking", promote_prefill=False)
    for _ in range(5):
        assert lengths(runtime, 1, 5) == [16]
        run(runtime, 5, cache=init_cache(nano.config, 1, 32))
        run(runtime, 16)
        score_tokens(runtime, [([1, 2], [3, 4, 5])])
    info = runtime.cache_info()
    assert all(not shape.promoted and shape.runs == 5 and shape.hits == 0 for shape in info.shapes.values())
    assert sorted(map(str, {shape.bucket for shape in info.shapes.values()})) == sorted(
        name.split("/")[1] for name in info.programs
    )
    assert compiled.count("forward_rows") == 2 and compiled.count("score_rows") == 1


@pytest.mark.parametrize("value", ["1", "0", "", "true", "yes", "11", None])
def test_b_prefill_switch_takes_only_1(value: str | None, nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(NO_PREFILL, value)
    assert lengths(Runtime(nano, promotion="blocking"), 3, 5) == [16, 16, 16 if value == "1" else 5]


def test_b_prefill_switch_is_read_at_every_call(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(nano, promotion="blocking")
    monkeypatch.setenv(NO_PREFILL, "1")
    assert lengths(runtime, 4, 5) == [16] * 4
    monkeypatch.delenv(NO_PREFILL)
    assert lengths(runtime, 2, 5) == [5, 5]
    monkeypatch.setenv(NO_PREFILL, "1")
    assert lengths(runtime, 1, 5) == [16]


@pytest.mark.parametrize(
    ("environment", "argument", "third"),
    [
        ({"MINFER_CAPTURE_PREFILL": "1"}, None, 5),
        ({"MINFER_CAPTURE_PREFILL": "0"}, None, 5),
        ({"MINFER_CAPTURE_PREFILL": "1", NO_PREFILL: "1"}, None, 16),
        ({NO_PREFILL: "1"}, True, 5),
        ({}, False, 16),
        ({"MINFER_CAPTURE_PREFILL": "1"}, False, 16),
    ],
)
def test_b_the_object_comes_before_the_environment(
    environment: dict[str, str], argument: bool | None, third: int, nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    runtime = Runtime(nano, promotion="blocking", promote_prefill=argument)
    assert lengths(runtime, 3, 5) == [16, 16, third]


def test_b_decode_is_promoted_with_the_opt_out(nano: Model, compiled: list[str]) -> None:
    """Three prompts are padded to four rows; the third run has three."""
    runtime = Runtime(nano, promotion="blocking", promote_prefill=False)
    prompts = [[5, 6, 7], [8, 9], [10]]
    texts, rows = [], []
    for _ in range(4):
        with runtime.trace() as records:
            outs = generate_batch(runtime, prompts, max_tokens=5, sampler=GREEDY, stop_ids=[])
        texts.append([out.tokens for out in outs])
        prefill, decode = records
        assert size(prefill.program, "b") == 4 and not prefill.promoted
        rows.append((size(decode.program, "b"), decode.promoted))
    assert rows == [(4, False), (4, False), (3, True), (3, True)]
    assert texts == [texts[0]] * 4 and [len(t) for t in texts[0]] == [5] * 3
    assert compiled.count("decode") == 2 and compiled.count("forward_rows") == 1


def test_b_visible_n_calls_m_compiles(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking")
    for n, calls in ((5, 6), (7, 2), (16, 4), (20, 3), (21, 1)):
        for _ in range(calls):
            run(runtime, n)
    info = runtime.cache_info()
    shapes = {size(s.shape, "t"): s for s in info.shapes.values()}
    # 16 calls -> 4 programs: buckets 16 (also exactly the shape of 16 tokens) and 24, and 5 and 20 at their third runs.
    assert {n: (s.runs, size(s.bucket, "t"), s.promoted, s.hits, s.failed) for n, s in shapes.items()} == {
        5: (6, 16, True, 4, False),
        7: (2, 16, False, 0, False),
        16: (4, 16, True, 2, False),
        20: (3, 24, True, 1, False),
        21: (1, 24, False, 0, False),
    }
    programs = {size(name, "t"): p for name, p in info.programs.items()}
    assert {n: p.calls for n, p in programs.items()} == {16: 8, 5: 4, 24: 3, 20: 1}
    assert compiled == ["forward_rows"] * 4 and info.compiles + info.disk_hits == 4 and info.evictions == 0
    assert all(p.compile_seconds > 0 for p in programs.values())
    assert {n: s.compile_seconds for n, s in shapes.items() if s.compile_seconds} == {
        n: programs[n].compile_seconds for n in (5, 20)
    }


# -- in the background


@pytest.mark.parametrize("options", [{"promotion": "background"}, {}], ids=["background", "default"])
def test_b_background_promotion_serves_the_bucket_meanwhile(
    options: dict, nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime(nano, **options)
    wanted = pure(nano, 5)
    started, release = threading.Event(), threading.Event()

    def before(shape: Shape) -> None:
        if shape.tokens == 5:
            started.set()
            assert threading.current_thread() is not threading.main_thread()
            assert release.wait(60)

    with compiling(monkeypatch, before) as asked:
        try:
            assert lengths(runtime, 3, 5) == [16] * 3
            assert started.wait(60)
            assert lengths(runtime, 2, 5) == [16] * 2
            (info,) = runtime.cache_info().shapes.values()
            assert not info.promoted and info.hits == 0
        finally:
            release.set()
        runtime.settle()
        with runtime.trace() as records:
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=rounding(nano, 1e-5))
        assert (size(records[0].program, "t"), records[0].promoted, records[0].run) == (5, True, 6)
        assert [a.shape.tokens for a in asked] == [16, 5]


EXIT = """
import sys, threading, time
import numpy as np
from minfer_jax import Runtime, load
from minfer_jax.runtime import runtime as module

runtime = Runtime(load(sys.argv[1]))
compile_program = module.compile_program
begun = threading.Event()

def slow(shape, *rest):
    if shape.tokens < 16:
        print("begins", shape.tokens, flush=True)
        begun.set()
        time.sleep(1)
    return compile_program(shape, *rest)

module.compile_program = slow
for n in (5, 6, 7):
    for _ in range(3):
        runtime.forward(np.ones((1, n), int), np.arange(n)[None])
begun.wait()
print("ends", flush=True)
"""


def test_b_a_process_may_end_with_a_promotion_under_way(nano_path: Path) -> None:
    """The one that compiles is finished, those that wait are dropped."""
    process = subprocess.run(
        [sys.executable, "-c", EXIT, nano_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (process.returncode, errors(process.stderr)) == (0, "")
    lines = process.stdout.splitlines()
    assert sorted(lines) == ["begins 5", "ends"]


def test_b_promotion_off(nano: Model, compiled: list[str]) -> None:
    """Neither prefill nor decoding ever leaves its bucket."""
    runtime = Runtime(nano, promotion="off")
    for _ in range(5):
        generate_batch(runtime, [[5, 6, 7], [8, 9], [10]], max_tokens=5, sampler=GREEDY, stop_ids=[])
    assert [s.promoted for s in runtime.cache_info().shapes.values()] == [False, False]
    assert compiled.count("decode") == compiled.count("forward_rows") == 1
