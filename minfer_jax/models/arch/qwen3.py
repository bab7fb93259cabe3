"""Qwen3 (dense): RMSNorm on each head of Q and K, an explicit head size, no biases."""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture("qwen3", requires=("q_norm", "k_norm"))
