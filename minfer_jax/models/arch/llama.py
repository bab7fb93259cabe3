"""Llama 1-3, Mistral, SmolLM and the many that convert to them. Rows of Q and K come in rotation pairs."""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture("llama", pair_ordered_qk=True)
