"""Fixtures of the model tests."""

from tests.tiny.fixtures import tiny_gguf, tiny_golden

__all__ = ["tiny_gguf", "tiny_golden"]
