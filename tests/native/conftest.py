"""The instruction sets that the native library has kernels for."""

import ctypes
from collections.abc import Iterator

import pytest

from minfer_jax.native import library


@pytest.fixture(scope="module", params=["avx512", "avxvnni", "avx2", "portable"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of the module once for each set of kernels that runs here: its name, while it is the one in use."""
    lib = library()
    if lib is None:
        pytest.skip("the native library was not built here")
    lib.minfer_kernels.restype = ctypes.c_char_p
    lib.minfer_use_kernels.restype = ctypes.c_bool
    chosen = lib.minfer_kernels()
    if not lib.minfer_use_kernels(request.param.encode()):
        pytest.skip(f"this processor does not run {request.param} kernels")
    yield request.param
    lib.minfer_use_kernels(chosen)
