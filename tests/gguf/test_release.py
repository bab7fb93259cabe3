"""Memory that reading a tensor takes is given back, and the tensor stays readable."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from minfer_jax.gguf import open_gguf


def resident_kb(path: Path) -> int:
    """Pages of a mapped file that this process holds, in KiB."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:.+\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(map(int, found))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_release_gives_the_pages_back(tiny_gguf):
    path = tiny_gguf("quant-k")
    tensors = open_gguf(path).tensors.values()
    before = [np.array(tensor.data) for tensor in tensors]
    held = resident_kb(path)
    for tensor in tensors:
        tensor.release()
    assert resident_kb(path) < held - sum(data.nbytes for data in before) // 1024 // 2
    for tensor, data in zip(tensors, before, strict=True):
        np.testing.assert_array_equal(tensor.data, data)
