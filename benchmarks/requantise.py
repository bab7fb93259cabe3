"""A model's file in Q4_0, from whatever it is in: every matrix Q4_0, the head (or the embedding that is it) Q8_0, the
rest as it is.

llama-quantize makes the head Q6_K, which gguf-py cannot write; Q8_0 is the nearest that it can.
"""

from pathlib import Path

from minfer_jax.env import cache_dir
from minfer_jax.gguf.requantize import requantize


def q4_0(source: Path) -> Path:
    """The file, which is kept in the package's cache folder."""
    target = cache_dir() / "benchmarks" / f"{source.stem}.requantised-q4_0.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        requantize(source, target, "Q4_0")
    return target
