"""Table B: programs by graph and shape, the three-run protocol, its switches and its failures."""

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.generation import generate_batch
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import forward, init_cache
from minfer_jax.runtime import Runtime, decode
from minfer_jax.runtime.keys import Shape, graph_uid, traced_settings
from minfer_jax.runtime.program import Program
from minfer_jax.runtime.runtime import as_runtime
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.runtime.runs import compiling, places, pure, run, served, tokens

GREEDY = Sampler(temperature=0)
NO_PREFILL = "MINFER_NO_PREFILL_CAPTURE"
PROMOTIONS = pytest.mark.parametrize("promotion", ["blocking", "background"])


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NO_PREFILL, "MINFER_CAPTURE_PREFILL", "MINFER_NO_PINNED_READBACK"):
        monkeypatch.delenv(name, raising=False)


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


# -- keys


def test_b_uid_covers_config_implementation_dtypes_and_versions(
    nano: Model, nano_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uid(model: Model) -> str:
        return graph_uid(model.config, model.params, traced_settings())

    uids = [
        uid(nano),
        uid(replace(nano, config=replace(nano.config, rms_eps=2e-5))),
        uid(replace(nano, config=replace(nano.config, windows=(7,)))),
        uid(load(nano_path, n_ctx=128)),
        uid(load(nano_path, dtype="bfloat16")),
        uid(load(nano_path, implementation="xla")),
        uid(replace(nano, params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), nano.params))),
    ]
    for package in ("minfer_jax", "jax"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{package}.__version__", "0")
            uids.append(uid(nano))
    with jax.default_matmul_precision("bfloat16"):
        uids.append(uid(nano))
    assert len(set(uids)) == len(uids)
    other_weights = replace(nano, params=jax.tree.map(lambda x: x + 1, nano.params))
    assert uid(other_weights) == uid(load(nano_path)) == uids[0] == Runtime(nano).graph_uid


def test_b_shape_covers_kind_batch_tokens_n_out_and_cache_length(nano: Model) -> None:
    runtime = Runtime(nano, readback="plain")
    run(runtime, 5)
    run(runtime, 5, 2)
    run(runtime, 6)
    run(runtime, 5, tail_ids=np.array([3]))
    for length, dtype in ((32, jnp.float32), (48, jnp.float32), (48, jnp.bfloat16)):
        run(runtime, 5, cache=init_cache(nano.config, 1, length, dtype))
    run(runtime, 1, cache=init_cache(nano.config, 1, 32))
    score_tokens(runtime, [([1, 2], [3, 4, 5])])
    info = runtime.cache_info()
    assert [shape.shape for shape in info.shapes.values()] == [
        "prefill b1 t5 o5 c0",
        "prefill b2 t5 o10 c0",
        "prefill b1 t6 o6 c0",
        "prefill b1 t5 o1 c0",
        "prefill b1 t5 o5 c32",
        "prefill b1 t5 o5 c48",
        "prefill b1 t5 o5 c48 bfloat16",
        "decode b1 t1 o1 c32",
        "score b1 t4 o3 c0",
    ]
    assert all(name == f"{runtime.graph_uid}/{shape.shape}" for name, shape in info.shapes.items())


def test_b_models_of_another_graph_never_share_a_program(nano: Model, nano_path: Path) -> None:
    """Two models in one process, through the programs that plain models share: each has its own answers."""
    other = load(nano_path, implementation="xla")
    shifted = replace(nano, params=jax.tree.map(lambda x: x * 1.5, nano.params))
    for _ in range(4):
        one, two, three = (score_tokens(m, [([1, 2, 3, 4, 5], [6])])[0].logprob for m in (nano, other, shifted))
        assert one == pytest.approx(two, abs=1e-5) and abs(one - three) > 1e-3
        as_runtime(nano).settle()


# -- the protocol


def test_b_three_run_protocol(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking")
    wanted = pure(nano, 5)
    compiled.clear()
    programs = []
    for _ in range(5):
        with runtime.trace() as records:
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=1e-5)
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
    assert scores[2] == pytest.approx(scores[0], abs=1e-5)
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
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=1e-5)
        assert (size(records[0].program, "t"), records[0].promoted, records[0].run) == (5, True, 6)
        assert [a.shape.tokens for a in asked] == [16, 5]


EXIT = """
import sys, time
import numpy as np
from minfer_jax import Runtime, load
from minfer_jax.runtime import runtime as module

runtime = Runtime(load(sys.argv[1]))
compile_program = module.compile_program

def slow(shape, *rest):
    if shape.tokens < 16:
        print("begins", shape.tokens, flush=True)
        time.sleep(1)
    return compile_program(shape, *rest)

module.compile_program = slow
for n in (5, 6, 7):
    for _ in range(3):
        runtime.forward(np.ones((1, n), int), np.arange(n)[None])
print("ends", flush=True)
"""


def test_b_a_process_may_end_with_a_promotion_under_way(nano_path: Path) -> None:
    """The one that compiles is finished, those that wait are dropped."""
    process = subprocess.run(
        [sys.executable, "-c", EXIT, nano_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert sorted(lines) == ["begins 5", "ends"]


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
    np.testing.assert_allclose(run(runtime, 20), wanted, rtol=0, atol=1e-5)
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
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)
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
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=1e-5)
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
            np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=1e-5)
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
    np.testing.assert_allclose(run(runtime, 5), pure(nano, 5), rtol=0, atol=1e-5)


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
        np.testing.assert_allclose(run(runtime, 5), wanted, rtol=0, atol=1e-5)
    assert [a.shape.tokens for a in asked] == [16, 16, 5, 5]
    (info,) = runtime.cache_info().shapes.values()
    assert info.promoted and not info.failed


def test_b_promotion_off(nano: Model, compiled: list[str]) -> None:
    """Neither prefill nor decoding ever leaves its bucket."""
    runtime = Runtime(nano, promotion="off")
    for _ in range(5):
        generate_batch(runtime, [[5, 6, 7], [8, 9], [10]], max_tokens=5, sampler=GREEDY, stop_ids=[])
    assert [s.promoted for s in runtime.cache_info().shapes.values()] == [False, False]
    assert compiled.count("decode") == compiled.count("forward_rows") == 1


TWO_DEVICES = """
import sys
from dataclasses import replace
import jax, numpy as np
import minfer_jax as mj
model = mj.load(sys.argv[1])
first, second = (replace(model, params=jax.device_put(model.params, device)) for device in jax.devices())
pairs = [([1, 2, 3], [4, 5])]
values = [mj.score_tokens(m, pairs)[0].logprob for m in (second, first, model, second)]
np.testing.assert_allclose(values, values[0], atol=1e-5)
assert len({mj.Runtime(m).graph_uid for m in (model, first, second)}) == 3
"""


def test_b_models_on_two_devices(nano_path: Path) -> None:
    """Where weights have been put is part of the key."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(nano_path)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_b_jit_switched_off_for_debugging_is_no_obstacle(nano: Model) -> None:
    with jax.disable_jit():
        logits = run(Runtime(nano), 5)
    np.testing.assert_allclose(logits, pure(nano, 5), rtol=0, atol=1e-5)


@PROMOTIONS
def test_b_programs_are_compiled_as_jax_was_set_when_the_runtime_was_made(
    promotion, nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a caller, or the thread that promotes, has it set to."""
    with jax.default_matmul_precision("highest"):
        runtime = Runtime(nano, promotion=promotion)
    seen = []

    def noting(*args):
        seen.append(jax.config.jax_default_matmul_precision)
        return forward(*args)

    monkeypatch.setattr("minfer_jax.runtime.jitted.forward", noting)
    with jax.default_matmul_precision("bfloat16"):
        for _ in range(3):
            run(runtime, 5)
        runtime.settle()
    assert seen == ["highest", "highest"]
