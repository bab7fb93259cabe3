"""What pyproject.toml cannot say: the native library, which is built where there is a C++ compiler."""

import os
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

jaxlib = find_spec("jaxlib")  # for XLA's headers, whose warnings are not ours
headers = ["-isystem", str(Path(jaxlib.origin).parent / "include")] if jaxlib and jaxlib.origin else []
# What sanitizers add takes minutes to optimise: they choose how much.
optimised = [] if "-fsanitize" in os.environ.get("CXXFLAGS", "") else ["-O3", "-g0"]
library = Extension(
    "minfer_jax.native.libminfer",  # no Python module: ctypes loads it
    sources=sorted(glob("minfer_jax/native/*.cc")),
    extra_compile_args=["-std=c++17", "-ffp-contract=off", *optimised, "-Wall", "-Wextra", *headers],
    depends=glob("minfer_jax/native/*.h"),
    libraries=["dl"],
    optional=True,  # what fails here does not fail the installation
)

setup(ext_modules=[library])
