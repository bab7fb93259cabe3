"""Phi-3 and Phi-4-mini: Q, K, V in one tensor, gate and up in one tensor (both cut apart at load), LongRoPE.

The file's sliding window is applied, as the model defines it; llama.cpp reads the key and ignores it.
"""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture("phi3")
