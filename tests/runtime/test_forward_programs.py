"""Table A1: inputs at the head, one device program per forward, tail rows, and the split count."""

import importlib
import math
import re
from collections.abc import Callable

import jax
import numpy as np
import pytest

from minfer_jax.generation import generate
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import Runtime, TraceRecord
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.promises import rounding
from tests.runtime.runs import Asked, compiling, places, pure, run, tokens
from tests.traces import traced_anew

GREEDY = Sampler(temperature=0)
SIGNATURE = re.compile(r"func\.func public @main\((.*?)\) -> ", re.S)
LITERAL = re.compile(r"stablehlo\.constant dense<(.*?)> : tensor<([^>]*)>", re.S)
PRODUCT = re.compile(r"stablehlo\.(?:dot_general|custom_call @minfer_matmul\().* -> (.*)")
HOST = re.compile(r"callback|infeed|outfeed|\bsend\b|\brecv\b|HostExecute", re.I)


def generated(runtime: Runtime) -> list[int]:
    """A prefill, a draw, and a decode program."""
    return generate(runtime, [5, 6, 7], max_tokens=4, sampler=GREEDY, stop_ids=[]).tokens


def stepped(runtime: Runtime) -> None:
    """A prefill of one row of the logits, and a step of one token."""
    generate(runtime, [5, 6, 7], max_tokens=2, sampler=GREEDY, stop_ids=[], logits_processors=[lambda _, x: x])


def scored(runtime: Runtime) -> None:
    score_tokens(runtime, [([5, 6, 7], [8])])


PROGRAMS: dict[str, Callable[[Runtime], object]] = {"generate": generated, "step": stepped, "score": scored}


@pytest.fixture(scope="module")
def asked(either: Model) -> list[Asked]:
    """Every program that those three have compiled, and one of every row without a cache."""
    with pytest.MonkeyPatch.context() as patch, compiling(patch) as asked:
        runtime = Runtime(either)
        runtime.early_exit = True  # where it is off, a greedy loop drops the arguments of drawing
        for work in PROGRAMS.values():
            work(runtime)
        run(runtime, 5)
    assert {(a.shape.kind, a.shape.steps > 1) for a in asked} == {
        ("prefill", False),
        ("decode", False),
        ("decode", True),
        ("score", False),
    }
    return asked


def test_a1_inputs_at_the_head_one_device_program_per_forward(nano: Model, compiled: list[str]) -> None:
    """A forward asks XLA for one program and nothing beside it."""
    jax.clear_caches()
    runtime = Runtime(nano)
    cache = init_cache(nano.config, 1, 256)
    compiled.clear()
    run(runtime, 7)
    assert compiled == ["forward_rows"]
    _, cache = runtime.forward(tokens(7), places(7), cache, np.array([3, 6]))
    assert compiled == ["forward_rows"] * 2
    runtime.forward(tokens(1), places(1, start=7), cache)
    assert compiled == ["forward_rows"] * 3
    scored(runtime)
    assert compiled[3:] == ["score_rows"]
    generated(runtime)
    assert compiled[-3:] == ["forward_rows", "draw_tokens", "decode"]


def test_a1_inputs_are_arguments(asked: list[Asked]) -> None:
    """Weights, tokens, positions, tail_ids and the cache: all of them, and none as a literal in the program."""
    for program in asked:
        text = program.lowered
        signature = SIGNATURE.search(text)
        assert signature is not None
        arguments = re.findall(r"%arg\d+: tensor<([^>]*)>", signature[1])
        expected = ["x".join([*map(str, x.shape), _dtype(x)]) for x in jax.tree.leaves(program.args)]
        assert arguments == expected, program.shape
        assert not HOST.search(text), program.shape
        large = [shape for value, shape in LITERAL.findall(text) if value[0] in '["' and _size(shape) > 64]
        assert large == [], program.shape


def _dtype(x: jax.ShapeDtypeStruct) -> str:
    return {"float32": "f32", "int32": "i32", "uint32": "ui32", "bool": "i1"}[x.dtype.name]


def _size(shape: str) -> int:
    return math.prod(int(n) for n in shape.split("x")[:-1])


def test_a1_tail_ids_absent_when_every_row_is_wanted(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(nano)
    with compiling(monkeypatch) as asked:
        whole = run(runtime, 7, 2)
        order = np.random.default_rng(0).permutation(14).astype(np.int32)
        every = run(runtime, 7, 2, tail_ids=order)
        np.testing.assert_array_equal(every, whole.reshape(14, -1)[order])
        assert [a.args[4] for a in asked] == [None]  # one program, and it has no tail_ids

        run(runtime, 7, 2, tail_ids=order[:13])
        assert [None if a.args[4] is None else a.args[4].shape for a in asked] == [None, (16,)]
        score_tokens(runtime, [(list(range(1)), list(range(16)))])
        score_tokens(runtime, [(list(range(40)), [1])])
    every, last = ((a.shape.slots, a.shape.n_out, a.args[3]) for a in asked[2:])
    assert every == (16, 16, None)
    assert last[:2] == (48, 24) and last[2].shape == (24,)


def test_a1_n_out_is_part_of_the_shape_key(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano, promotion="blocking")
    for n_out in (1, 2, 16):
        run(runtime, 16, tail_ids=np.arange(n_out))
    shapes = runtime.cache_info().shapes.values()
    assert [re.findall(r" o(\d+) ", info.shape)[0] for info in shapes] == ["1", "2", "16"]
    assert all(info.shape == info.bucket for info in shapes)
    assert compiled.count("forward_rows") == 3


def test_a1_tail_rows_equal_the_full_computations_rows(tiny_gguf) -> None:
    """By the pure function on all rows, for a batch, rows in any order and more than once, bucket and promoted."""
    model = load(tiny_gguf("gemma3"))
    runtime = Runtime(model, promotion="blocking")
    wanted = pure(model, 11, 3).reshape(33, -1)
    tail = np.array([32, 0, 10, 11, 21, 22, 0, 31])
    for _ in range(3):
        np.testing.assert_allclose(run(runtime, 11, 3, tail_ids=tail), wanted[tail], rtol=0, atol=rounding(model, 2e-5))
    (info,) = runtime.cache_info().shapes.values()
    assert info.promoted and info.bucket != info.shape


def test_a1_only_tail_rows_reach_the_last_ffn_and_the_head(either: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 21 x 2 rows 5 are wanted: no product as wide as the FFN or the vocabulary has another number of rows."""
    runtime = Runtime(either, promotion="blocking")
    with compiling(monkeypatch) as asked:
        for _ in range(3):
            run(runtime, 21, 2, tail_ids=np.array([3, 20, 41, 0, 7]))
    wide = {either.config.d_ff, either.config.vocab_size}
    n_wide = 3 if either.provenance["implementation"] == "dense" else 2  # gate, up (one call of native kernels), head
    for program, n_out in zip(asked, (8, 5), strict=True):
        assert program.shape.n_out == n_out
        results = re.findall(r"tensor<([\dx]+)xf32>", "\n".join(PRODUCT.findall(program.lowered)))
        sizes = [list(map(int, result.split("x"))) for result in results]
        rows = [math.prod(size[:-1]) for size in sizes]
        assert [n for n, size in zip(rows, sizes, strict=True) if size[-1] in wide] == [n_out] * n_wide
        assert program.shape.slots in rows  # those of attention have all


def test_a1_decode_has_no_tail_ids(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token a row: whatever tail_ids say, the graph is the same."""
    runtime = Runtime(nano)
    caches = [init_cache(nano.config, 2, 256) for _ in range(3)]
    with compiling(monkeypatch) as asked:
        plain = run(runtime, 1, 2, caches[0])
        same = run(runtime, 1, 2, caches[1], np.array([0, 1]))
        turned = run(runtime, 1, 2, caches[2], np.array([1, 0]))
    (program,) = asked
    assert program.shape.kind == "decode" and program.args[4] is None
    np.testing.assert_array_equal(same, plain[:, 0])
    np.testing.assert_array_equal(turned, plain[::-1, 0])


def check_splits(records: list[TraceRecord], runtime: Runtime) -> None:
    """One segment of device work in every program; their texts name nothing of the host."""
    assert {record.splits for record in records} == {1}
    programs = runtime._programs.snapshot()[1].values()
    assert programs and not any(HOST.search(_without_metadata(program.text)) for program in programs)


def _without_metadata(text: str) -> str:
    return re.sub(r"metadata=\{[^}]*\}", "", text)


@pytest.mark.parametrize("work", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a1_split_trace(work: Callable[[Runtime], object], nano: Model) -> None:
    runtime = Runtime(nano)
    with runtime.trace() as records:
        work(runtime)
    assert [record.key.split("/")[1].split()[0] for record in records] == {
        "generated": ["prefill", "decode"],
        "stepped": ["prefill", "decode"],
        "scored": ["score"],
    }[work.__name__]
    check_splits(records, runtime)


@pytest.mark.parametrize("work", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a1_split_trace_sees_a_planted_callback(
    work: Callable[[Runtime], object], nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("minfer_jax.models.forward")
    rms_norm = module.rms_norm

    def planted(x: jax.Array, *rest) -> jax.Array:
        x = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return rms_norm(x, *rest)

    monkeypatch.setattr(module, "rms_norm", planted)
    runtime = Runtime(traced_anew(nano))
    with runtime.trace() as records:
        work(runtime)
    assert all(record.splits > 1 for record in records)
    with pytest.raises(AssertionError):
        check_splits(records, runtime)


def test_prefill_gives_the_rows_that_tail_ids_name(nano: Model) -> None:
    """As many as there are tokens, in any order; fewer; and all of a padded run."""
    runtime = Runtime(nano)
    wanted = pure(nano, 5, 2).reshape(10, -1)
    order = np.random.default_rng(0).permutation(10).astype(np.int32)
    for tail_ids in (None, order, order[:4]):
        cache = init_cache(nano.config, 2, 32)
        logits, _ = runtime.prefill(tokens(5, 2), places(5, 2), cache, tail_ids)
        rows = wanted if tail_ids is None else wanted[tail_ids]
        np.testing.assert_allclose(logits, rows, rtol=0, atol=rounding(nano, 1e-5))
