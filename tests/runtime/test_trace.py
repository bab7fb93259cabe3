"""Table "Seeing it": the lines of MINFER_GRAPH_TRACE, the records of ``Runtime.trace``, and ``cache_info`` as JSON."""

import io
import json
import re
import sys

import numpy as np
import pytest

from minfer_jax.generation import generate
from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import Runtime
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.runtime.runs import places, run, served, tokens

SWITCH = "MINFER_GRAPH_TRACE"
LINE = re.compile(
    r"minfer-jax trace: (?P<key>[0-9a-f]{12}/(?:prefill|decode|score) b\d+ t\d+ o\d+ c\d+.*?) run (?P<run>\d+)"
    r" (?P<served>promoted|bucket \((?P<bucket>.*?)\)) splits (?P<splits>\d+) kernels (?P<kernels>\d+)"
    r" dispatch (?P<dispatch>\d+) us device (?P<device>-|\d+) us readback (?P<readback>-|\d+) us (?P<bytes>\d+) bytes"
)


def lines(text: str) -> list[re.Match[str]]:
    """The lines, every one of them a record and nothing else."""
    found = [(line, LINE.fullmatch(line)) for line in text.splitlines()]
    assert all(match for _, match in found), found
    return [match for _, match in found if match]


def test_graph_trace_writes_one_line_per_forward(
    nano: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime(nano, promotion="blocking")
    runtime.early_exit = True  # one trip count
    monkeypatch.setenv(SWITCH, "1")
    for _ in range(3):
        run(runtime, 5)
    one, two, three = lines(capsys.readouterr().err)
    route = "" if runtime._readback._route == "plain" else f" {runtime._readback._route}"
    vocab = nano.config.vocab_size
    for match, number in ((one, "1"), (two, "2"), (three, "3")):
        assert match["key"] == f"{runtime.graph_uid}/prefill b1 t5 o5 c0{route}" and match["run"] == number
        assert match["splits"] == "1" and int(match["kernels"]) > 5
        assert match["device"] == "-" and match["readback"] != "-" and int(match["dispatch"]) > 0
    assert one["served"] == two["served"] == f"bucket (prefill b1 t16 o16 c0{route})"
    assert three["served"] == "promoted"
    assert [int(match["bytes"]) for match in (one, two, three)] == [4 * vocab * n for n in (16, 16, 5)]

    score_tokens(runtime, [([1, 2], [3, 4, 5])])
    generate(runtime, [5, 6, 7], max_tokens=4, sampler=Sampler(temperature=0), stop_ids=[])
    score, prefill, decode = lines(capsys.readouterr().err)
    assert [re.findall(r"/(\w+)", match["key"])[0] for match in (score, prefill, decode)] == [
        "score",
        "prefill",
        "decode",
    ]
    assert (prefill["readback"], prefill["bytes"]) == ("-", "0")  # those logits stay on the device
    assert int(score["bytes"]) == (4 + 4) * 16 and int(decode["bytes"]) == (4 + 4) * 32
    with runtime.trace(block=True):
        run(runtime, 5)
    (blocked,) = lines(capsys.readouterr().err)
    assert blocked["device"] != "-"


@pytest.mark.parametrize("value", [None, "0", "", "true", "on", "2"])
def test_graph_trace_takes_only_1_at_each_call(
    value: str | None, nano: Model, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = Runtime(nano)
    monkeypatch.setenv(SWITCH, "1")
    run(runtime, 5)
    assert len(lines(capfd.readouterr().err)) == 1
    monkeypatch.delenv(SWITCH)
    if value is not None:
        monkeypatch.setenv(SWITCH, value)
    run(runtime, 5)
    assert capfd.readouterr() == ("", "")


def test_trace_records_tell_the_device_time_when_asked_to_block(nano: Model) -> None:
    runtime = Runtime(nano)
    with runtime.trace(block=True) as blocked:
        run(runtime, 5)
    with runtime.trace() as records:
        run(runtime, 5)
        with runtime.trace(block=True) as inner:
            run(runtime, 5)
        run(runtime, 5)
    run(runtime, 5)
    (first,) = blocked
    assert first.device_us is not None and first.device_us >= 0 and first.dispatch_us > 0
    assert [record.run for record in records] == [2, 3, 4] and [record.run for record in inner] == [3]
    assert [record.device_us is None for record in records] == [True, False, True]
    assert json.loads(json.dumps(first.to_dict())) == first.to_dict()


def test_trace_readback_bytes_are_those_of_the_logits(nano: Model) -> None:
    runtime = Runtime(nano, promotion="blocking")
    vocab = nano.config.vocab_size
    tail = np.array([1, 4, 2])

    def read(n_runs: int, n: int, **more) -> list[int]:
        return [record.readback_bytes // (4 * vocab) for record in served(runtime, n_runs, n, **more)]

    assert read(3, 5) == [16, 16, 5]
    assert read(3, 5, tail_ids=tail) == [4, 4, 3]
    assert read(3, 5, batch=3) == [64, 64, 15]
    with runtime.trace() as records:
        logits, _ = runtime.forward(tokens(1), places(1), init_cache(nano.config, 1, 32))
    assert records[0].readback_bytes == logits.nbytes == 4 * vocab
    assert records[0].readback_us is not None and records[0].readback_us > 0


def test_nothing_is_recorded_when_nobody_asks(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the text of the program is not read."""
    monkeypatch.delenv(SWITCH, raising=False)
    runtime = Runtime(nano)
    with runtime.trace() as records:
        pass
    run(runtime, 5)
    (program,) = runtime._programs.snapshot()[1].values()
    assert records == [] and not {"splits", "kernels"} & vars(program).keys()


def test_cache_info_is_json(nano: Model) -> None:
    runtime = Runtime(nano, promotion="blocking")
    served(runtime, 3, 5)
    info = runtime.cache_info().to_dict()
    assert json.loads(json.dumps(info)) == info
    assert set(info) == {"shapes", "programs", "compiles", "disk_hits", "evictions"}
    (shape,) = info["shapes"].values()
    assert set(shape) == {"shape", "bucket", "runs", "promoted", "hits", "compile_seconds", "failed"}
    for program in info["programs"].values():
        assert set(program) == {"calls", "compile_seconds", "from_disk", "device_bytes", "temp_bytes"}
        assert program["temp_bytes"] > 0


def test_listeners_come_and_go_in_any_order(nano: Model) -> None:
    """As from two threads: one leaves while the other stays."""
    runtime = Runtime(nano)
    one, other = runtime.trace(), runtime.trace()
    first = one.__enter__()
    second = other.__enter__()
    run(runtime, 5)
    one.__exit__(None, None, None)
    run(runtime, 5)
    other.__exit__(None, None, None)
    run(runtime, 5)
    assert (len(first), len(second)) == (1, 2)


class Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()])
def test_a_trace_that_nobody_can_read(stream, nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a closed stderr nor a full one fails the call, or sends the line elsewhere."""
    want = run(Runtime(nano), 5)
    monkeypatch.setenv(SWITCH, "1")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        np.testing.assert_array_equal(run(Runtime(nano), 5), want)
