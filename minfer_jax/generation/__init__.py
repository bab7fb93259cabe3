"""Text from a model: ``generate`` for the whole, ``stream`` piece by piece, ``generate_batch`` for many prompts."""

from minfer_jax.generation.api import TextStream, generate, generate_batch, stream
from minfer_jax.generation.output import Generation

__all__ = ["Generation", "TextStream", "generate", "generate_batch", "stream"]
