"""Files of rows, and a tiny model to score them with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minfer_jax.load import load
from minfer_jax.model import Model


@pytest.fixture(scope="session")
def tiny(tiny_gguf) -> Model:
    return load(tiny_gguf("llama"))


@pytest.fixture(autouse=True)
def compared(repeatable: None) -> None:
    """Files of results are compared here, byte by byte."""


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """lines(row, ...) -> a file of JSON lines; bytes are written as they are."""

    def write(*rows: object, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))
        return path

    return write


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
