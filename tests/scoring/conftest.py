"""Fixtures of the scoring tests."""

import pytest

from minfer_jax.load import load
from minfer_jax.model import Model

SHORT = {"smol135": "smol", "qwen05": "qwen", "gemma270": "gemma"}


@pytest.fixture
def model(name: str, request: pytest.FixtureRequest) -> Model:
    """The real model of a test that is parametrized by ``name``, as load() gives it by default."""
    return request.getfixturevalue(f"{SHORT[name]}_model")


@pytest.fixture
def exact(name: str, request: pytest.FixtureRequest) -> Model:
    """The same in float32."""
    return request.getfixturevalue(f"{SHORT[name]}_exact")


@pytest.fixture(scope="session")
def tiny_model(tiny_gguf) -> Model:
    """A random llama model of a few kilobytes with a byte-level vocabulary."""
    return load(tiny_gguf("llama"))
