"""Fixtures of the scoring tests."""

import pytest

from minfer_jax.load import load
from minfer_jax.model import Model


@pytest.fixture
def model(name: str, request: pytest.FixtureRequest) -> Model:
    """The real model of a test that is parametrized by ``name``."""
    fixture = {"smol135": "smol_model", "qwen05": "qwen_model", "gemma270": "gemma_model"}[name]
    return request.getfixturevalue(fixture)


@pytest.fixture(scope="session")
def tiny_model(tiny_gguf) -> Model:
    """A random llama model of a few kilobytes with a byte-level vocabulary."""
    return load(tiny_gguf("llama"), dtype="float32")
