"""Tiny random models as GGUF files, one per architecture and rule, and the logits llama.cpp gives on them."""

from .cases import CASES, WITHOUT, Case
from .files import write_tiny

__all__ = ["CASES", "WITHOUT", "Case", "write_tiny"]
