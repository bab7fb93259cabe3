"""From a GGUF file, or a split set of them, to checked metadata and raw tensors on a memory map.

The layout read here is that of ggml's GGUF document (``docs/gguf.md``), versions 2 and 3, little-endian.
Nothing in a file is believed before it is checked: see the modules ``header`` and ``tensors``.
"""

from minfer_jax.gguf.file import GGUFFile, open_gguf
from minfer_jax.gguf.metadata import Metadata
from minfer_jax.gguf.tensor_types import readable_types
from minfer_jax.gguf.tensors import RawTensor

__all__ = ["GGUFFile", "Metadata", "RawTensor", "open_gguf", "readable_types"]
