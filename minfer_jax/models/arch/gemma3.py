"""Gemma 3 (text): five sliding-window layers to each full one, a rope base for each kind, QK-norm, post-norms.

Norm weights in GGUF already contain the +1 of the original formulation.
"""

from minfer_jax.models.arch.base import Architecture

ARCH = Architecture(
    "gemma3",
    activation="gelu",
    requires=("q_norm", "k_norm", "attn_post_norm", "ffn_post_norm"),
    full_every=6,
    local_rope_base=10000.0,
    scale_embedding=True,
    width_scaled_depth=62,  # 27B
)
