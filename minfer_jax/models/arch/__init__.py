"""The architectures: one small file of differences for each family, over the blocks that all share."""

from minfer_jax.models.arch import gemma2, gemma3, llama, phi3, qwen2, qwen3
from minfer_jax.models.arch.base import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    a.name: a for a in (llama.ARCH, qwen2.ARCH, qwen3.ARCH, gemma2.ARCH, gemma3.ARCH, phi3.ARCH)
}
"""Every supported value of ``general.architecture``."""

__all__ = ["ARCHITECTURES", "Architecture"]
