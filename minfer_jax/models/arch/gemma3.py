"""Gemma 3 (text): five sliding-window layers to each full one, a rope base for each kind, QK-norm, post-norms.

Norm weights in GGUF already contain the +1 of the original formulation.
"""

import math

from minfer_jax.models.arch.base import Architecture


def _attention_scale(head_dim: int, d_model: int, n_heads: int, n_layers: int) -> float:
    """The 27B model (62 layers) scales by width per head, not by its head size; no metadata key says so."""
    return 1.0 / math.sqrt(d_model // n_heads if n_layers == 62 else head_dim)


ARCH = Architecture(
    "gemma3",
    activation="gelu",
    requires=("q_norm", "k_norm", "attn_post_norm", "ffn_post_norm"),
    full_every=6,
    local_rope_base=10000.0,
    scale_embedding=True,
    attention_scale=_attention_scale,
)
