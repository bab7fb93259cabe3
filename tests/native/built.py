"""What tests need that run the native library."""

import pytest

from minfer_jax.native import library

needs_library = pytest.mark.skipif(library() is None, reason="the native library was not built here")
