"""Gemma 2: soft-capped logits, norms after each block, every second layer sees everything.

Norm weights in GGUF already contain the +1 of the original formulation.
"""

import math

from minfer_jax.models.arch.base import Architecture


def _attention_scale(head_dim: int, d_model: int, n_heads: int, n_layers: int) -> float:
    """The 27B model (46 layers) scales by width per head, not by its head size; no metadata key says so."""
    return 1.0 / math.sqrt(d_model // n_heads if n_layers == 46 else head_dim)


ARCH = Architecture(
    "gemma2",
    activation="gelu",
    requires=("attn_post_norm", "ffn_post_norm"),
    full_every=2,
    default_window=4096,
    scale_embedding=True,
    attention_softcap=50.0,
    final_softcap=30.0,
    attention_scale=_attention_scale,
)
