"""The command as a process: exit codes, no traceback, pipes that close, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stderr import errors
from tests.tiny import CASES

COMMAND = [sys.executable, "-m", "minfer_jax.cli"]


def finish(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_g01_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\3\0\0\0")
    done = finish("generate", tmp_path / "cut.gguf", "a")
    assert (done.returncode, done.stdout) == (1, "")
    assert errors(done.stderr).startswith("minfer-jax: error: ") and errors(done.stderr).count("\n") == 1


def test_wrong_usage_is_exit_code_2() -> None:
    assert finish().returncode == finish("fly").returncode == finish("info").returncode == 2


def test_help_and_version() -> None:
    done = finish("--help")
    assert done.returncode == 0
    for command in ("info", "score", "perplexity", "generate", "chat", "eval", "bench", "trace", "dot", "demo"):
        assert f"  {command}" in done.stdout
    bare = subprocess.run([sys.executable, "-OO", *COMMAND[1:], "--help"], capture_output=True, text=True, timeout=120)
    assert bare.returncode == 0 and "  perplexity" in bare.stdout, bare.stderr  # no docstrings there
    assert finish("--version").stdout.startswith("minfer-jax ")


def test_output_is_utf8_safe_where_the_locale_is_not(tiny_gguf, tmp_path: Path) -> None:
    model = tiny_gguf(next(iter(CASES)))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = finish("score", model, "--context", "a", "--continuation", " é", "--json", env=environment)
    assert done.returncode == 0 and len(json.loads(done.stdout)["tokens"]) == 3
    done = finish("score", model, "--text", "aé", env=environment)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_ends_the_command_quietly(tiny_gguf) -> None:
    command = [*COMMAND, "score", str(tiny_gguf(next(iter(CASES)))), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b'{"text": "the"}\n' * 10)
        process.stdin.close()
        assert errors(process.stderr.read().decode()) == ""
        assert process.wait(timeout=120) == 141


def test_ctrl_c_is_exit_code_130_without_traceback(tiny_gguf) -> None:
    command = [*COMMAND, "score", str(tiny_gguf(next(iter(CASES)))), "-"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Unbuffered: communicate() would not see what readline() had read ahead.
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(b'{"text": "the"}\n' * 512)  # one block of rows: its results come while stdin stays open
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["row"] == 1
        for _ in range(3):  # Python can lose one in a callback of its garbage collector
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=20)
                break
            except subprocess.TimeoutExpired:
                continue
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors(err.decode()).endswith("minfer-jax: interrupted\n")
    assert all(json.loads(line) for line in out.splitlines())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_is_one_line(tiny_gguf) -> None:
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "info", str(tiny_gguf(next(iter(CASES))))]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == "minfer-jax: error: the output cannot be written: No space left on device\n"
