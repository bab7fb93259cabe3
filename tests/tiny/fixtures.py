"""Fixtures over the tiny models; `tests/conftest.py` imports them."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from . import CASES, WITHOUT, write_tiny


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of the file of a name in CASES or WITHOUT, written when first asked for."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def path(name: str) -> Path:
        case = CASES[name] if name in CASES else WITHOUT[name][1]
        return write_tiny(case, folder / f"{name}.gguf")

    return path


@pytest.fixture(scope="session")
def tiny_golden() -> dict[str, Any]:
    """What llama.cpp gives on every tiny file; see `make_golden.py`."""
    return json.loads((Path(__file__).parent.parent / "data" / "tiny_logits.json").read_text())
