"""Running commands inside the test's own process, where programs stay compiled."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minfer_jax.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def rows(self) -> list[Any]:
        """JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """run("info", path, ..., stdin=b"...") -> Outcome. Wrong usage gives the code of its SystemExit."""

    def call(*argv: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        try:
            code = main([str(argument) for argument in argv])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """What llama.cpp gives on SmolLM2-135M, its weights written out in float32."""
    return json.loads((Path(__file__).parent.parent / "data" / "cli.json").read_text(encoding="utf-8"))


def assert_one_error(outcome: Outcome, *words: str, code: int = 1) -> None:
    """One line on stderr that holds the words, nothing on stdout, and the exit code."""
    assert outcome.code == code, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("minfer-jax: error: ") and outcome.err.count("\n") == 1, outcome.err
    for word in words:
        assert word in outcome.err
