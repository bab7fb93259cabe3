"""Fixtures of the runtime tests."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.monitoring
import pytest

from minfer_jax.load import load
from minfer_jax.model import Model
from tests.native.built import needs_library
from tests.runtime.runs import NO_PREFILL
from tests.tiny import CASES, write_tiny


@pytest.fixture(scope="session")
def nano_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama file of one layer: its programs compile in half a second."""
    case = replace(CASES["llama"], n_layers=1, d_model=32, d_ff=48, n_heads=2, n_kv_heads=1)
    return write_tiny(case, tmp_path_factory.mktemp("nano") / "nano.gguf")


@pytest.fixture(scope="session")
def nano(nano_path: Path) -> Model:
    """The model of ``nano_path``."""
    return load(nano_path)


@pytest.fixture(scope="session", params=["dense", pytest.param("ffi", marks=needs_library)])
def either(nano_path: Path, request: pytest.FixtureRequest) -> Model:
    """That model with its products by XLA, and by the native kernels."""
    return load(nano_path, implementation=request.param)


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs that XLA was asked for since the test began, in every thread, as JAX itself reports them
    (a program read from the persistent cache is one, too)."""
    for thread in threading.enumerate():  # promotions that earlier tests have set off
        if "promotion" in thread.name:
            thread.join()
    names: list[str] = []

    def note(event: str, _: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about["fun_name"].removeprefix("jit(").removesuffix(")"))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NO_PREFILL, "MINFER_CAPTURE_PREFILL", "MINFER_NO_PINNED_READBACK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def tiny(tiny_gguf) -> Model:
    return load(tiny_gguf("llama"))
