"""`minfer-jax trace`: a record of every program call, and a decode step whose parts add up."""

import re
from collections import Counter
from typing import Any

import pytest

from minfer_jax.profiling.breakdown import _breakdown
from minfer_jax.runtime import TraceRecord
from minfer_jax.runtime.buckets import MAX_STEPS
from tests.cli.conftest import assert_one_error
from tests.tiny import CASES

PASSES = 3
N, GEN = 20, 1 + MAX_STEPS + 2
SIZES = ("--tokens", N, "--gen", GEN)


@pytest.fixture(scope="module")
def vocab() -> int:
    return CASES["llama"].vocab.size


def parts_add_up(step: dict[str, Any]) -> bool:
    parts = ("dispatch_us", "device_us", "readback_us", "sampling_us", "other_us")
    return sum(step[part] or 0 for part in parts) == pytest.approx(step["total_us"])


def test_every_call_has_a_record(run, tiny_gguf, vocab: int) -> None:
    got = run("trace", tiny_gguf("llama"), *SIZES, "--json").json
    calls = Counter()
    for record in got["records"]:
        graph, _, shape = record["key"].partition("/")
        calls[shape] += 1
        assert graph == got["graph"] and record["run"] == calls[shape]
        assert record["promoted"] == (record["run"] >= 3) and (record["program"] == shape or not record["promoted"])
        assert record["splits"] == 1 and record["kernels"] > 0
        assert record["dispatch_us"] > 0 and record["device_us"] > 0
        # log-probability and likeliest token of each row; tokens and log-probabilities of each step; logits; nothing.
        kind, steps = shape.split()[0], re.search(r" x(\d+)", shape)
        read = 8 * (N if record["promoted"] else 24) if kind == "score" else 8 * int(steps[1]) if steps else 4 * vocab
        if kind == "prefill" and record["readback_us"] is None:
            read = 0
        assert record["readback_bytes"] == read
    by_kind = Counter()
    for shape, n in calls.items():
        by_kind[shape.split()[0]] += n
    assert by_kind == {"prefill": 2 * PASSES, "score": PASSES, "decode": PASSES * (2 + GEN - 1)}


def test_the_parts_of_a_step_add_up(run, tiny_gguf, vocab: int) -> None:
    got = run("trace", tiny_gguf("llama"), *SIZES, "--json").json
    step, token = got["step"], got["token"]
    assert parts_add_up(step) and parts_add_up(token)
    assert (step["samples"], token["samples"]) == ((PASSES - 1) * (GEN - 1), (PASSES - 1) * 2)
    assert step["sampling_us"] > 0 and token["sampling_us"] is None
    assert step["other_us"] > 0 and token["other_us"] > 0
    # The parts are those of the records that come with them.
    decode = [record for record in got["records"] if "/decode" in record["key"]]
    calls = [record for record in decode if record["readback_bytes"] == 4 * vocab][GEN - 1 :]
    portions = [record for record in decode if " x" in record["key"]][2:]
    for part in ("dispatch_us", "device_us", "readback_us"):
        times = [record[part] for record in calls]
        assert min(times) < step[part] < max(times)
        times = [record[part] / n for record, n in zip(portions, (MAX_STEPS, 2) * (PASSES - 1), strict=True)]
        assert min(times) < token[part] < max(times)


def test_a_breakdown_is_of_the_middle_half() -> None:
    seconds = [[2, 2, 3, 4, 20], [50, 20, 10, 40, 300], [4, 2, 1, 4, 20], [1, 1, 1, 1, 5]]
    got = _breakdown([[1e-6 * x for x in row] for row in seconds], sampled=True).to_dict()
    assert {name: round(value, 6) for name, value in got.items()} == {
        "samples": 4,
        "dispatch_us": 3,
        "device_us": 2,
        "readback_us": 2,
        "sampling_us": 4,
        "other_us": 9,
        "total_us": 20,
    }


def test_the_table_and_the_lines_of_the_switch(run, tiny_gguf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINFER_GRAPH_TRACE", "1")
    outcome = run("trace", tiny_gguf("llama"), *SIZES, "--json")
    lines = [line for line in outcome.err.splitlines() if line.startswith("minfer-jax trace: ")]
    assert lines == [str(TraceRecord(**record)) for record in outcome.json["records"]]

    monkeypatch.delenv("MINFER_GRAPH_TRACE")
    outcome = run("trace", tiny_gguf("llama"), *SIZES)
    assert "minfer-jax trace" not in outcome.err
    graph, calls, steps = outcome.out.split("\n\n")
    assert re.fullmatch(r"graph [0-9a-f]{12}", graph)
    header, *rows = calls.splitlines()
    assert header.split("  ")[0] == "program call"
    spans = [re.match(r"(\w+ b1 .*?)  +(\d+)(?:-(\d+))? +(promoted|bucket.*?)  ", row) for row in rows]
    runs = Counter()
    for span in spans:
        assert span
        shape, first, last = span[1], int(span[2]), int(span[3] or span[2])
        assert first == runs[shape] + 1 and (span[4] == "promoted") == (first >= 3)
        runs[shape] = last
    assert sum(runs.values()) == PASSES * (2 + 1 + 2 + GEN - 1)  # prompts, score, portions, steps
    header, step, token = steps.splitlines()
    assert re.split(r"  +", header) == [
        *("decode step", "dispatch us", "device us", "readback us", "sampling us", "other us", "total us")
    ]
    assert re.fullmatch(r"logits on the host( +-?\d+){6}", step)
    assert re.fullmatch(r"many tokens a call( +-?\d+){3} +-( +-?\d+){2}", token)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", 250, "--gen", 10), ("260", "256")),
        (("--tokens", 0), ("tokens", "0")),
        (("--gen", 1), ("gen", "1")),
    ],
)
def test_bad_numbers_are_one_line(run, tiny_gguf, arguments, words) -> None:
    assert_one_error(run("trace", tiny_gguf("llama"), *arguments), *words)


def test_wrong_usage(run, tiny_gguf) -> None:
    outcome = run("trace", tiny_gguf("llama"), "--tokens", "x")
    assert outcome.code == 2 and outcome.out == ""
