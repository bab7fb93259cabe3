"""Scoring by actors of a local Ray cluster: the files of a run without Ray, whatever dies. Skipped without Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from minfer_jax import load, score_dataset
from tests.stderr import errors

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")

SCORE = [sys.executable, "-m", "minfer_jax.cli", "score"]
ROWS = [
    {"id": i, "context": "in the " * (i % 7), "continuation": 1 if i == 77 else " end" * (1 + i % 3)}
    for i in range(400)
]
SHARD = 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path / "rows.jsonl"


def by_ray(model: Path, source: Path, target: Path, *more: str) -> subprocess.Popen:
    options = ["-o", str(target), "--engine", "ray", "--shard-rows", str(SHARD), *more]
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}  # a cluster of its own
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*SCORE, str(model), str(source), *options], env=environment, text=True, **pipes)


def actors(driver: int) -> Iterator[int]:
    """Processes of actors that score, of the cluster that a driver has started."""
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes()
            if b"ray::MapWorker" in title and _descends(int(entry.name), driver):
                yield int(entry.name)
        except (OSError, ValueError):
            continue


def _descends(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        process = int((Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


def shards_of(target: Path) -> int:
    return len(list(Path(f"{target}.parts").glob("[0-9]*.json")))


def wait_for(what, process: subprocess.Popen, seconds: int = 180):
    until = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


@pytest.mark.usefixtures("repeatable")
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_actors_and_driver_die_and_nothing_is_lost(tiny_gguf, source: Path, tmp_path: Path) -> None:
    model, target, straight = tiny_gguf("llama"), tmp_path / "scores.jsonl", tmp_path / "straight.jsonl"
    score_dataset(load(model), source, straight, shard_rows=SHARD)

    driver = by_ray(model, source, target, "--workers", "2")
    wait_for(lambda: shards_of(target) >= 3, driver)
    os.kill(next(actors(driver.pid)), signal.SIGKILL)
    before = shards_of(target)
    wait_for(lambda: shards_of(target) >= before + 5, driver)
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 130 and out == "" and "Traceback" not in err, err
    kept = shards_of(target)
    assert 8 <= kept < 100 and f"{kept * SHARD} of 400 rows are scored and kept" in err

    driver = by_ray(model, source, target, "--workers", "2", "--resume", "--json")
    out, err = driver.communicate(timeout=180)
    assert driver.returncode == 0, err
    summary = json.loads(out)
    assert (summary["resumed"], summary["scored"], summary["bad"]) == (kept * SHARD, 399, 1)
    for end in ("", ".errors.jsonl"):
        assert Path(f"{target}{end}").read_bytes() == Path(f"{straight}{end}").read_bytes()
    ours, theirs = (json.loads(Path(f"{path}.manifest.json").read_bytes()) for path in (target, straight))
    assert list(ours.pop("files").values()) == list(theirs.pop("files").values())
    assert ours | {"finished": 0} == theirs | {"finished": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "10000"), "workers is 10000; the cluster has "),
        (("--ray-address", "127.0.0.1:1"), "no Ray cluster at 127.0.0.1:1"),
        (("--strict", "--workers", "1"), "row 78: continuation is 1; give a text"),
    ],
)
def test_errors_are_one_line(tiny_gguf, source: Path, tmp_path: Path, options: tuple, message: str) -> None:
    driver = by_ray(tiny_gguf("llama"), source, tmp_path / "scores.jsonl", *options)
    out, err = driver.communicate(timeout=180)
    assert driver.returncode == 1 and out == ""
    assert errors(err).splitlines()[-1].startswith("minfer-jax: error: ") and message in err and "Traceback" not in err


def test_without_ray_is_one_line(tiny_gguf, source: Path, tmp_path: Path) -> None:
    script = "import sys; sys.modules['ray'] = None; from minfer_jax.cli import main; sys.exit(main(sys.argv[1:]))"
    options = [str(tiny_gguf("llama")), str(source), "-o", str(tmp_path / "a.jsonl"), "--engine", "ray"]
    done = subprocess.run(
        [sys.executable, "-c", script, "score", *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == "minfer-jax: error: this engine needs Ray: pip install 'ray[data]'\n"
