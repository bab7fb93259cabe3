"""Fixtures of the file tests: a small sound model, and real files as the `gguf` library reads them."""

from pathlib import Path

import pytest
from gguf import GGUFReader

from tests.gguf.builder import write_small_model


@pytest.fixture
def small_model(tmp_path: Path) -> Path:
    """Path of a small sound model written by the `gguf` library."""
    return write_small_model(tmp_path / "small.gguf")


@pytest.fixture(scope="session")
def smol135_reader(smol135: Path) -> GGUFReader:
    """The SmolLM2 file as the `gguf` library reads it: the oracle."""
    return GGUFReader(smol135)
