"""`minfer-jax bench`: the tests that options ask for, what their lines hold, and options that make no sense."""

import itertools
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from gguf import GGUFReader

from minfer_jax.cli import bench
from minfer_jax.native import library
from minfer_jax.profiling import bench as measuring
from tests.cli.conftest import assert_one_error

FIELDS = {
    *("model_filename", "model_size", "model_n_params", "architecture", "quantisation", "implementation", "dtype"),
    *("backend", "device", "copy_bandwidth", "versions", "build", "test_time", "test", "n_prompt", "n_gen", "n_depth"),
    *("batch", "avg_ts", "stddev_ts", "samples_ts", "compile_s", "programs", "programs_from_disk", "kernels"),
    *("step_bytes", "bandwidth_pct", "precision", "instruction_set"),
}


def count_weights(path: Path) -> dict[str, int]:
    """Weights by tensor, as the gguf library reads them."""
    return {tensor.name: int(np.prod(tensor.shape)) for tensor in GGUFReader(path).tensors}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timed run takes half a second, and the device copies 1 MB per second."""
    ticks = itertools.count()
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 2))
    monkeypatch.setattr(bench, "copy_bandwidth", lambda: 1e6)


def test_a_line_for_every_test(run, tiny_gguf) -> None:
    model = tiny_gguf("llama")
    outcome = run("bench", model, "-p", "8,0,12", "-n", "3", "-d", "0,5", "-r", 3, "-o", "jsonl")
    assert outcome.code == 0 and "benchmark" not in outcome.err
    lines = outcome.rows
    names = ["pp8", "pp12", "tg3", "pp8 @ d5", "pp12 @ d5", "tg3 @ d5"]
    assert [line["test"] for line in lines] == names
    sizes = [(line["n_prompt"], line["n_gen"], line["n_depth"]) for line in lines]
    assert sizes == [(8, 0, 0), (12, 0, 0), (0, 3, 0), (8, 0, 5), (12, 0, 5), (0, 3, 5)]
    weights = sum(count_weights(model).values())
    for line in lines:
        assert line.keys() == FIELDS
        assert (line["model_filename"], line["model_size"]) == (model.name, model.stat().st_size)
        assert line["model_n_params"] == weights and line["backend"] == jax.default_backend()
        assert line["versions"]["jax"] == jax.__version__ and line["quantisation"] and line["device"]
        assert len(line["samples_ts"]) == 3 and line["batch"] == 1 and line["kernels"] > 0
        assert line["avg_ts"] == pytest.approx(statistics.mean(line["samples_ts"]))
        assert line["stddev_ts"] == pytest.approx(statistics.stdev(line["samples_ts"]))
        assert 0 <= line["programs_from_disk"] <= line["programs"] and (line["compile_s"] > 0) == (line["programs"] > 0)
        assert (line["bandwidth_pct"] is None) == (line["step_bytes"] is None) == (line["n_gen"] == 0)
        if line["n_gen"]:
            read = line["step_bytes"] * line["avg_ts"]
            assert line["bandwidth_pct"] == pytest.approx(100 * read / line["copy_bandwidth"])
    # A bucket and the shape itself; then the next shape of that bucket; what has run before needs nothing new.
    assert [line["programs"] for line in lines] == [2, 1, 1, 0, 0, 0]


@pytest.mark.usefixtures("clock")
def test_tokens_per_second_are_of_all_sequences_together(run, tiny_gguf) -> None:
    arguments = ("-p", 8, "-n", 4, "-r", 2, "--batch", 3, "-o", "json")
    pp, tg = run("bench", tiny_gguf("llama"), *arguments).json
    assert (pp["samples_ts"], pp["avg_ts"], pp["stddev_ts"]) == ([48.0, 48.0], 48.0, 0.0)
    assert (tg["samples_ts"], tg["avg_ts"], tg["stddev_ts"]) == ([24.0, 24.0], 24.0, 0.0)
    # 8 steps a second by 3 rows together: each reads the weights once.
    assert tg["bandwidth_pct"] == pytest.approx(100 * 8 * tg["step_bytes"] / 1e6)


@pytest.mark.usefixtures("clock")
def test_bytes_of_a_step(run, tiny_gguf) -> None:
    def step_bytes(name: str, *arguments) -> float:
        return run("bench", tiny_gguf(name), "-p", 0, "-n", 2, "-r", 1, "-o", "json", *arguments).json[0]["step_bytes"]

    # Tied llama, float32, and the rotations of half a head; 3 layers of 2 heads of 16 keys and values, and the tokens
    # of positions 10 and 11 look at 11 and 12.
    dense = ("--implementation", "dense")
    weights = 4 * sum(count_weights(tiny_gguf("llama")).values()) + 4 * 8
    slot = 3 * 2 * (2 * 16) * 4
    assert step_bytes("llama", "-d", 10, *dense) == weights + 11.5 * slot
    assert step_bytes("llama", "-d", 10, "--batch", 2, *dense) == weights + 2 * 11.5 * slot
    # An embedding that is not the head is not read but for a row.
    counts = count_weights(tiny_gguf("mistral"))
    weights = 4 * (sum(counts.values()) - counts["token_embd.weight"]) + 4 * 12
    assert step_bytes("mistral", *dense) == weights + 1.5 * 3 * 2 * (2 * 24) * 4
    # Of gemma2's four layers two look back 8 tokens only.
    weights = 4 * sum(count_weights(tiny_gguf("gemma2")).values()) + 4 * 8
    assert step_bytes("gemma2", "-d", 10, *dense) == weights + (2 * 8 + 2 * 11.5) * 2 * (2 * 16) * 4
    # Packed weights count as they lie in memory.
    packed = ["xla", "ffi"] if library() else ["xla"]
    expanded = step_bytes("quant-legacy", *dense)
    assert all(step_bytes("quant-legacy", "--implementation", name) < 0.5 * expanded for name in packed)


def test_table(run, tiny_gguf) -> None:
    model = tiny_gguf("llama")
    outcome = run("bench", model, "-p", 4, "-n", 2, "-r", 1, "--implementation", "dense")
    header, rule, pp, tg, empty, device = outcome.out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (header, rule, pp, tg)]
    assert {len(line) for line in (header, rule, pp, tg)} == {len(header)}
    assert cells[0] == [
        *("model", "size", "params", "backend", "weights", "batch", "test"),
        *("t/s", "bandwidth", "kernels", "compile", "from disk"),
    ]
    assert all(set(cell) <= {"-", ":"} for cell in cells[1])
    for row, name in zip(cells[2:], ("pp4", "tg2"), strict=True):
        about = dict(zip(cells[0], row, strict=True))
        assert (about["model"], about["test"], about["batch"]) == (model.name, name, "1")
        assert about["weights"] == "float32"
        assert about["t/s"].endswith("± 0.00") and int(about["kernels"]) > 0
        assert (about["bandwidth"] == "-") == (name == "pp4")
    assert empty == "" and device.endswith("GB/s")


def test_json_is_one_document(run, tiny_gguf) -> None:
    outcome = run("bench", tiny_gguf("llama"), "-p", 4, "-n", 0, "-r", 1, "--json")
    (line,) = outcome.json
    assert line.keys() == FIELDS and line["test"] == "pp4"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", 300, "-n", 0), ("300", "256")),
        (("-p", 0, "-n", 10, "-d", "1,250"), ("260", "256")),
        (("-r", 0), ("repetitions", "0")),
        (("-p", "16,b"), ("n_prompt", "16,b")),
        (("-n", "-3"), ("n_gen", "-3")),
        (("-d", ""), ("n_depth", "''")),
        (("--batch", 0), ("batch", "0")),
        (("--batch", 10**12), ("batch", "1000000000000")),
    ],
)
def test_bad_numbers_are_one_line(run, tiny_gguf, arguments, words) -> None:
    assert_one_error(run("bench", tiny_gguf("llama"), *arguments), *words)


@pytest.mark.parametrize("arguments", [("-o", "csv"), ("-p", 0, "-n", 0), ("-r", "few")])
def test_wrong_usage(run, tiny_gguf, arguments) -> None:
    outcome = run("bench", tiny_gguf("llama"), *arguments)
    assert outcome.code == 2 and outcome.out == ""


def test_out_of_memory_is_one_line_and_keeps_what_is_done(run, tiny_gguf, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = bench.measure

    def fail(runtime, test, *rest):
        if test.n_prompt == 4:
            return measure(runtime, test, *rest)
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no 99 GB\nand more")

    monkeypatch.setattr(bench, "measure", fail)
    outcome = run("bench", tiny_gguf("llama"), "-p", "4,8", "-r", 1, "-o", "jsonl")
    assert outcome.code == 1 and json.loads(outcome.out)["test"] == "pp4"
    assert outcome.err.count("\n") == 1 and "out of memory" in outcome.err and "no 99 GB" in outcome.err

    def break_down(*_):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug")

    monkeypatch.setattr(bench, "measure", break_down)
    with pytest.raises(jax.errors.JaxRuntimeError):
        run("bench", tiny_gguf("llama"), "-p", 4, "-r", 1)
