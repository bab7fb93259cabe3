"""Gemma 2: soft-capped logits, norms after each block, every second layer sees everything.

Norm weights in GGUF already contain the +1 of the original formulation.
"""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture(
    "gemma2",
    activation="gelu",
    requires=("attn_post_norm", "ffn_post_norm"),
    full_every=2,
    default_window=4096,
    scale_embedding=True,
    attention_softcap=50.0,
    final_softcap=30.0,
    width_scaled_depth=46,  # 27B
)
