"""Loading the native library, and going on without it."""

import ctypes
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import jax
import pytest

from minfer_jax import native
from minfer_jax.native import library
from tests.native.built import needs_library

Patch, Log = pytest.MonkeyPatch, pytest.LogCaptureFixture


@pytest.fixture
def log(monkeypatch: Patch, caplog: Log) -> Log:
    """What is logged, with library() as in a new process."""
    monkeypatch.setattr(native, "_load", cache(native._load.__wrapped__))
    caplog.set_level(logging.WARNING, "minfer_jax")
    return caplog


def library_in_threads() -> list[ctypes.CDLL | None]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: library(), range(8)))


@needs_library
def test_it_is_loaded_once_and_in_silence(log: Log):
    (lib,) = set(library_in_threads())
    assert isinstance(lib, ctypes.CDLL)
    assert log.messages == []


def test_absent(log: Log, monkeypatch: Patch, tmp_path: Path):
    monkeypatch.setattr(native, "_PATH", tmp_path / "libminfer.so")
    assert library_in_threads() == [None] * 8
    assert log.messages == ["going on without the native library: not built; install again with a C++17 compiler"]


def test_not_a_library(log: Log, monkeypatch: Patch, tmp_path: Path):
    (tmp_path / "libminfer.so").write_text("text")
    monkeypatch.setattr(native, "_PATH", tmp_path / "libminfer.so")
    assert library_in_threads() == [None] * 8
    (line,) = log.messages
    assert "libminfer.so" in line and "\n" not in line


@needs_library
def test_cut_off(log: Log, monkeypatch: Patch, tmp_path: Path):
    """To load such a file would end the process."""
    (tmp_path / "libminfer.so").write_bytes(native._PATH.read_bytes()[:100_000])
    monkeypatch.setattr(native, "_PATH", tmp_path / "libminfer.so")
    assert library_in_threads() == [None] * 8
    assert log.messages == ["going on without the native library: libminfer.so is cut off; install again"]


@needs_library
@pytest.mark.parametrize("newer_by, fits", [((0, -1), False), ((0, 0), True), ((0, 1), True), ((1, 0), False)])
def test_jaxlib_has_another_version_of_the_interface(
    newer_by: tuple[int, int],
    fits: bool,
    log: Log,
    monkeypatch: Patch,
    tmp_path: Path,
):
    major, minor = (ctypes.c_int * 2).in_dll(ctypes.CDLL(str(native._PATH)), "minfer_ffi_api_version")
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(
        "#define XLA_FFI_API_VERSION_H\n"
        f"#define XLA_FFI_API_MAJOR {major + newer_by[0]}\n#define XLA_FFI_API_MINOR {minor + newer_by[1]}\n"
    )
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    assert [lib is not None for lib in library_in_threads()] == [fits] * 8
    assert log.messages == (
        []
        if fits
        else [
            f"going on without the native library: built for XLA's FFI {major}.{minor}, "
            f"jaxlib has {major + newer_by[0]}.{minor + newer_by[1]}; install again"
        ]
    )
