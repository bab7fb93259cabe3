"""A path becomes a read-only memory map of a GGUF file, or an error that says what the file is instead."""

import mmap
import os
import stat
from pathlib import Path

from minfer_jax.errors import GGUFError

MAGIC = b"GGUF"
VERSIONS = (2, 3)

# First bytes of what people rename or download by mistake, and what to do about it.
_LOOKALIKES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer; fetch the file itself (git lfs pull)",
    ),
    (b"PK\x03\x04", "a zip archive (a wheel, a PyTorch checkpoint); unzip it or convert the model to GGUF"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"lmgg", "a GGML file from before GGUF; convert the original model to GGUF"),
    (b"fmgg", "a GGML file from before GGUF; convert the original model to GGUF"),
    (b"tjgg", "a GGML file from before GGUF; convert the original model to GGUF"),
)


def map_file(path: Path) -> mmap.mmap:
    """Map a GGUF file and check its magic and version.

    The map is read-only and lives as long as an array made on it. A file that another process shortens while
    it is mapped ends this process (SIGBUS), as with any memory map: replace model files by renaming.

    Raises:
        GGUFError: missing, not a regular file, unreadable, empty, or not GGUF of a version we read.
    """
    try:
        # stat before open: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise GGUFError(f"{path}: not a regular file; give a GGUF file, or a folder that holds one model")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise GGUFError(f"{path}: the file is empty (0 bytes); download it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file or folder") from None
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a NUL inside the path
        raise GGUFError(f"{str(path)!r}: cannot be a file name ({error})") from None
    _check_start(path, mapped)
    return mapped


def _check_start(path: Path, mapped: mmap.mmap) -> None:
    head = mapped[:512]
    if len(head) < 8 and head[:4] == MAGIC[: len(head)]:
        raise GGUFError(f"{path}: the file has {len(head)} bytes and ends in its first field; download it again")
    if head[:4] != MAGIC:
        raise GGUFError(f"{path}: not a GGUF file; {_guess(head)}")
    version = int.from_bytes(head[4:8], "little")
    swapped = int.from_bytes(head[4:8], "big")
    if version in VERSIONS:
        return
    if swapped < 1 << 16 < version:
        raise GGUFError(
            f"{path}: a big-endian GGUF file (version {swapped}); only little-endian files are read: "
            "convert it with gguf-convert-endian"
        )
    advice = "convert the model again with current tools" if version < 2 else "update minfer-jax"
    raise GGUFError(f"{path}: GGUF version {version}; versions 2 and 3 are read: {advice}")


def _guess(head: bytes) -> str:
    for start, meaning in _LOOKALIKES:
        if head.startswith(start):
            return f"it is {meaning}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "it looks like an HTML page (a web or error page was saved instead); download the file itself"
    # safetensors: the length of a JSON header in 8 bytes, then the header.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "it looks like safetensors; convert the model to GGUF"
    if text.startswith((b"{", b"[")):
        return "it looks like JSON (an error answer of a server?); download the file itself"
    return f"it starts with {head[:8]!r}; a part of a file cut by bytes must be joined with the others first"
