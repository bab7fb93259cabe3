"""Runs that stop: killed, interrupted, out of disk; and what may and may not be resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filelock
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minfer_jax import ArgumentError, Columns, MinferError, load, score_dataset
from minfer_jax.model import Model
from minfer_jax.scoring.dataset.block_scorer import BlockScorer
from minfer_jax.scoring.dataset.shards import Shards
from tests.scoring.dataset import killed
from tests.scoring.dataset.conftest import read
from tests.stderr import errors
from tests.tiny import CASES

COMMAND = [sys.executable, "-m", "minfer_jax.cli", "score"]
ROWS = [{"id": i, "context": "in the " * (i % 7), "continuation": " end" * (1 + i % 3)} for i in range(400)]
SHARD = "8"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, suffix: str) -> None:
    command = [sys.executable, "-W", "ignore", killed.__file__, str(tmp_path), suffix]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=os.getcwd(), env=_path()
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50  # five shards, each of three files that are written and renamed


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def started(model: Path, source: Path, target: Path, under: tuple[str, ...] = (), **options: Any) -> subprocess.Popen:
    command = [*under, *COMMAND, str(model), str(source), "-o", str(target), "--shard-rows", SHARD, "--resume"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def stopped(process: subprocess.Popen, target: Path, sign: int) -> tuple[str, str]:
    """What it wrote, when it is sent a signal after its first shard."""
    until = time.monotonic() + 120
    while not list(Path(f"{target}.parts").glob("[0-9]*.json")) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    while process.poll() is None:  # Python can lose one in a callback of its garbage collector
        process.send_signal(sign)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue
    return process.communicate(timeout=120)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_stopped_and_resumed_gives_what_one_run_gives(tiny_gguf, tiny: Model, tmp_path: Path, lines, sign: int) -> None:
    source, target = lines(*ROWS), tmp_path / "scores.jsonl"
    process = started(tiny_gguf("llama"), source, target)
    out, err = stopped(process, target, sign)
    finished = len(list(Path(f"{target}.parts").glob("[0-9]*.json")))
    assert out == "" and 0 < finished < 50 and not target.exists()
    if sign == signal.SIGINT:
        assert process.returncode == 130, err
        kept = f"{finished * int(SHARD)} of 400 rows are scored and kept in {target}.parts: resume from there"
        assert errors(err) == f"minfer-jax: {kept}\nminfer-jax: interrupted\n"
    with pytest.raises(ArgumentError, match="unfinished run; resume it"):
        score_dataset(tiny, source, target, shard_rows=int(SHARD))
    done = score_dataset(tiny, source, target, shard_rows=int(SHARD), resume=True)
    assert done.resumed == finished * int(SHARD) and done.rows == done.scored == 400
    score_dataset(tiny, source, tmp_path / "one.jsonl", shard_rows=int(SHARD))
    assert target.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert [row["id"] for row in read(target)] == list(range(400))


def test_a_full_disk_is_one_line_and_keeps_finished_shards(tiny_gguf, tiny: Model, tmp_path: Path, lines) -> None:
    source, target = lines(*ROWS), tmp_path / "scores.jsonl"
    no_file_above_20_kb = ("sh", "-c", 'ulimit -f 40; exec "$@"', "sh")
    # Written into no cache of compiled programs: they would not fit either.
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    process = started(tiny_gguf("llama"), source, target, no_file_above_20_kb, env=environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1 and out == ""
    kept, error = errors(err).splitlines()
    assert "400 of 400 rows are scored and kept" in kept
    assert error.startswith("minfer-jax: error: ") and error.endswith("cannot be written: File too large")
    assert not target.exists()
    assert score_dataset(tiny, source, target, shard_rows=int(SHARD), resume=True).resumed == 400
    assert [row["id"] for row in read(target)] == list(range(400))


def test_a_finished_run_is_left_as_it_is(tiny: Model, tmp_path: Path, lines) -> None:
    source, target = lines(*ROWS[:9]), tmp_path / "scores.jsonl"
    first = score_dataset(tiny, source, target, resume=True)
    before = target.stat()
    again = score_dataset(tiny, source, target, resume=True)
    assert (again.resumed, again.scored, again.seconds) == (9, first.scored, 0)
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(ArgumentError, match="scores.jsonl: exists; remove it"):
        score_dataset(tiny, source, target)


def test_a_file_of_someone_else_s_is_never_written_over(tiny: Model, tmp_path: Path, lines) -> None:
    (tmp_path / "mine.jsonl").write_text("dear")
    for resume in (False, True):
        with pytest.raises(ArgumentError, match="mine.jsonl: exists"):
            score_dataset(tiny, lines(*ROWS[:9]), tmp_path / "mine.jsonl", resume=resume)
    assert (tmp_path / "mine.jsonl").read_text() == "dear"


@pytest.mark.parametrize("stopped_early", [True, False])
def test_another_model_source_or_option_is_refused_by_name(
    tiny: Model, tiny_gguf, tmp_path: Path, lines, monkeypatch: pytest.MonkeyPatch, stopped_early: bool
) -> None:
    source, target = lines(*ROWS[:20]), tmp_path / "scores.jsonl"
    if stopped_early:
        score = BlockScorer.score
        monkeypatch.setattr(BlockScorer, "score", lambda *a: _refuse() if a[1].index else score(*a))
        with pytest.raises(KeyboardInterrupt):
            score_dataset(tiny, source, target, shard_rows=10)
        monkeypatch.undo()
    else:
        score_dataset(tiny, source, target, shard_rows=10)

    def refused(what: str, model: Model = tiny, source: Path = source, **options: Any) -> None:
        with pytest.raises(ArgumentError, match=rf"manifest.json: {what} was .* and is .*; resume with the same"):
            score_dataset(model, source, target, resume=True, **{"shard_rows": 10, **options})

    other = next(name for name in CASES if name != "llama")
    refused("model.bytes", load(tiny_gguf(other)))
    refused("model.n_ctx", load(tiny_gguf("llama"), n_ctx=64))
    refused("source.bytes", source=lines(*ROWS[:21], name="other.jsonl"))
    refused("source.sha256", source=lines(*ROWS[1:20], ROWS[0], name="rows.jsonl"))
    lines(*ROWS[:20])
    refused("shard_rows", shard_rows=7)
    refused("form.parse_special", parse_special=True)
    refused("form.id", columns=Columns(id="continuation"))
    refused("form.kind", columns=Columns(text="context"))
    assert score_dataset(tiny, source, target, resume=True, shard_rows=10).scored == 20


def _refuse(*_: object) -> None:
    raise KeyboardInterrupt


def test_one_process_at_a_time(tiny: Model, tmp_path: Path, lines) -> None:
    folder = tmp_path / "scores.jsonl.parts"
    folder.mkdir()
    with filelock.FileLock(folder / ".lock"), pytest.raises(MinferError, match="another process is writing there"):
        score_dataset(tiny, lines(*ROWS[:3]), tmp_path / "scores.jsonl", resume=True)


def test_a_damaged_record_is_named(tiny: Model, tmp_path: Path, lines) -> None:
    folder = tmp_path / "scores.jsonl.parts"
    folder.mkdir()
    (folder / "manifest.json").write_text("{")
    with pytest.raises(MinferError, match=r"manifest.json: is no manifest of a run \(.*\); remove"):
        score_dataset(tiny, lines(*ROWS[:3]), tmp_path / "scores.jsonl", resume=True)


def test_the_command_takes_it_all(tiny_gguf, tmp_path: Path, lines) -> None:
    command = [*COMMAND, str(tiny_gguf("llama")), str(lines(*ROWS[:5], {"context": 1}))]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "a.jsonl"), "--json"], capture_output=True, text=True, timeout=120
    )
    summary = json.loads(done.stdout)
    assert done.returncode == 0 and (summary["rows"], summary["scored"], summary["bad"]) == (6, 5, 1)
    assert read(Path(summary["errors"])) == [{"row": 6, "error": "has context; give context and continuation"}]


def damaged(folder: Path) -> dict[str, Any]:
    """Ways to spoil the first finished shards of a run by hand."""
    data, record = folder / "000000.jsonl", folder / "000000.json"
    return {
        "cut": lambda: data.write_bytes(data.read_bytes()[:-5]),
        "emptied": lambda: data.write_bytes(b""),
        "copied": lambda: data.write_bytes((folder / "000001.jsonl").read_bytes()),
        "removed": data.unlink,
        "no errors": (folder / "000000.errors").unlink,
        "record cut": lambda: record.write_bytes(record.read_bytes()[:-5]),
        "record empty": lambda: record.write_text("{}"),
        "foreign": lambda: [(folder / f"000099{end}").write_bytes((folder / f"000000{end}").read_bytes())
                            for end in (".json", ".jsonl")],
        "odd names": lambda: (folder / "1 copy.json").write_text("{}"),
    }  # fmt: skip


@pytest.mark.parametrize("how", damaged(Path()))
def test_shards_that_were_changed_are_made_again(
    tiny: Model, tmp_path: Path, lines, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    rows = [ROWS[0], {"context": 1, "continuation": "a"}, *ROWS[1:11]]
    source, target = lines(*rows), tmp_path / "scores.jsonl"
    score_dataset(tiny, source, tmp_path / "straight.jsonl", shard_rows=4)
    monkeypatch.setattr(Shards, "finish", _refuse)
    with pytest.raises(KeyboardInterrupt):
        score_dataset(tiny, source, target, shard_rows=4)
    monkeypatch.undo()
    damaged(Path(f"{target}.parts"))[how]()
    done = score_dataset(tiny, source, target, shard_rows=4, resume=True)
    assert done.resumed == (12 if how in ("foreign", "odd names") else 8) and (done.rows, done.bad) == (12, 1)
    for end in ("", ".errors.jsonl"):
        assert Path(f"{target}{end}").read_bytes() == (tmp_path / f"straight.jsonl{end}").read_bytes()


def test_a_target_that_was_changed_is_told(tiny: Model, tmp_path: Path, lines) -> None:
    source, target = lines(ROWS[0], {"context": 1, "continuation": "a"}, *ROWS[1:3]), tmp_path / "scores.jsonl"
    for name in ("scores.jsonl", "scores.jsonl.errors.jsonl"):
        score_dataset(tiny, source, target)
        (tmp_path / name).write_bytes(b"garbage")
        with pytest.raises(ArgumentError, match=f"{name}: is not as the run left it; remove it and"):
            score_dataset(tiny, source, target, resume=True)
        for end in ("", ".manifest.json", ".errors.jsonl"):
            Path(f"{target}{end}").unlink()
    (tmp_path / "scores.jsonl.errors.jsonl").write_text("mine")
    with pytest.raises(ArgumentError, match="errors.jsonl: exists; remove it, or give another name"):
        score_dataset(tiny, source, target)


def test_a_folder_of_someone_else_s_is_left_alone(tiny: Model, tmp_path: Path, lines) -> None:
    folder = tmp_path / "scores.jsonl.parts"
    folder.mkdir()
    (folder / "mine").write_text("dear")
    with pytest.raises(ArgumentError, match="parts: holds files and no manifest of a run"):
        score_dataset(tiny, lines(*ROWS[:3]), tmp_path / "scores.jsonl", resume=True)
    assert (folder / "mine").read_text() == "dear"


def test_strict_does_not_pass_over_bad_rows_of_before(tiny: Model, tmp_path: Path, lines) -> None:
    source = lines(ROWS[0], {"context": 1, "continuation": "a"}, *ROWS[1:3])
    score_dataset(tiny, source, tmp_path / "scores.jsonl")
    with pytest.raises(MinferError, match="1 rows could not be scored in the run that is resumed"):
        score_dataset(tiny, source, tmp_path / "scores.jsonl", resume=True, strict=True)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_source_that_changes_stops_the_run(tiny: Model, tmp_path: Path, lines, monkeypatch, suffix: str) -> None:
    source = lines(*ROWS[:20])
    if suffix == ".parquet":
        source = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS[:20]), source)
    encode = BlockScorer.encode

    def change_and_encode(self: BlockScorer, block: Any) -> Any:
        if block.index == 2:
            data = source.read_bytes()
            source.write_bytes(data.replace(b"end", b"END") if suffix == ".jsonl" else data + b"!")
        return encode(self, block)

    monkeypatch.setattr(BlockScorer, "encode", change_and_encode)
    with pytest.raises(ArgumentError, match=f"rows{suffix}: has changed since the run began"):
        score_dataset(tiny, source, tmp_path / "scores.jsonl", shard_rows=5)


@pytest.mark.parametrize("end", ["", ".errors.jsonl", ".manifest.json", ".parts/rows.jsonl"])
def test_a_source_is_never_written_over(tiny: Model, tmp_path: Path, lines, end: str) -> None:
    target = tmp_path / "scores.jsonl"
    source = Path(f"{target}{end}")
    source.parent.mkdir(exist_ok=True)
    lines(*ROWS[:3]).rename(source)
    before = source.read_bytes()
    with pytest.raises(ArgumentError, match="is a file that is read|which is removed in the end"):
        score_dataset(tiny, source, target, resume=True)
    assert source.read_bytes() == before


def test_what_can_be_no_target_is_told_at_once(tiny: Model, tmp_path: Path, lines) -> None:
    source = lines(*ROWS[:3])
    (tmp_path / "a.jsonl.manifest.json").mkdir()
    os.mkfifo(tmp_path / "fifo.jsonl")
    for name, message in [
        ("a.jsonl", "manifest.json: is a folder"),
        ("fifo.jsonl", "is no regular file"),
        ("b" * 240 + ".jsonl", "cannot be written: File name too long"),
        ("c\0.jsonl", "cannot be written: .*null"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            score_dataset(tiny, source, tmp_path / name)
    with pytest.raises(ArgumentError, match="fifo.jsonl: is no regular file; write the rows to one first"):
        score_dataset(tiny, tmp_path / "fifo.jsonl", tmp_path / "d.jsonl")
