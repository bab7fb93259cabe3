"""Qwen2 and Qwen2.5: biases on Q, K and V."""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture("qwen2", requires=("q_bias", "k_bias", "v_bias"))
