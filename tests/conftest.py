"""Fixtures shared by the suite: the real models, fetched once into the user cache, as paths and loaded; tiny ones."""

import signal
from pathlib import Path

import pytest

from minfer_jax.errors import MinferError
from minfer_jax.hub import resolve
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.native import library
from tests.runtime.runs import NO_PREFILL
from tests.tiny.fixtures import tiny_gguf, tiny_golden

__all__ = ["tiny_gguf", "tiny_golden"]

# Started in the background of a script, it would be ignored here, and in the processes that tests send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

library()  # where it was not built, that is said once, before any test looks at what is written


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs whose bytes are compared, in processes that are started, too: where XLA orders sums, a program of a
    shape's own changes last bits, from a moment on that is another in each run."""
    if library() is None:
        monkeypatch.setenv(NO_PREFILL, "1")


def _real_model(name: str) -> Path:
    # A model that cannot be fetched is a failure: skipping would turn the suite green without its oracle.
    try:
        return resolve(name)
    except MinferError as error:
        pytest.fail(f"the real model {name} is needed by this test: {error}", pytrace=False)


@pytest.fixture(scope="session")
def smol135() -> Path:
    """Path of SmolLM2-135M-Instruct Q4_1 (llama architecture, byte-level BPE)."""
    return _real_model("smollm2-135m")


@pytest.fixture(scope="session")
def qwen05() -> Path:
    """Path of Qwen2.5-Coder-0.5B-Instruct Q4_K_M (qwen2 architecture); use with the `models` marker."""
    return _real_model("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def gemma270() -> Path:
    """Path of Gemma-3-270M Q4_K_M (gemma3 architecture, SentencePiece); use with the `models` marker."""
    return _real_model("gemma3-270m")


@pytest.fixture(scope="session")
def smol_model(smol135: Path) -> Model:
    """SmolLM2-135M as load() gives it by default."""
    return load(smol135)


@pytest.fixture(scope="session")
def smol_exact(smol135: Path) -> Model:
    """SmolLM2-135M with everything in float32, by whatever implementation is the default here."""
    return load(smol135, precision="exact")


@pytest.fixture(scope="session")
def qwen_model(qwen05: Path) -> Model:
    """Qwen2.5-Coder-0.5B as load() gives it by default; use with the `models` marker."""
    return load(qwen05)


@pytest.fixture(scope="session")
def qwen_exact(qwen05: Path) -> Model:
    """Qwen2.5-Coder-0.5B in the manner of ``smol_exact``; use with the `models` marker."""
    return load(qwen05, precision="exact")


@pytest.fixture(scope="session")
def gemma_model(gemma270: Path) -> Model:
    """Gemma-3-270M as load() gives it by default; use with the `models` marker."""
    return load(gemma270)


@pytest.fixture(scope="session")
def gemma_exact(gemma270: Path) -> Model:
    """Gemma-3-270M in the manner of ``smol_exact``; use with the `models` marker."""
    return load(gemma270, precision="exact")
