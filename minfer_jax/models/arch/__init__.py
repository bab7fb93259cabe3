"""The architectures: shared reading of metadata here, one small file of differences for each family."""

from minfer_jax.errors import UnsupportedError
from minfer_jax.models.arch import gemma2, gemma3, llama, phi3, qwen2, qwen3
from minfer_jax.models.arch.base import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    a.name: a for a in (llama.ARCH, qwen2.ARCH, qwen3.ARCH, gemma2.ARCH, gemma3.ARCH, phi3.ARCH)
}
"""Every supported value of ``general.architecture``."""


def find_architecture(name: str, source: str) -> Architecture:
    """The architecture by its GGUF name; UnsupportedError names the file and what is supported."""
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{source}: architecture {name!r} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]
