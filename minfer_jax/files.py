"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from minfer_jax.errors import ArgumentError, MinferError


def check_target(target: str | os.PathLike[str]) -> Path:
    """A path that a file can be written to. Raises ArgumentError when it is no path, a folder, or in no folder."""
    if not isinstance(target, str | os.PathLike) or not os.fspath(target):
        raise ArgumentError(f"path is {target!r:.80}; give the path of a file to write")
    path = Path(target)
    if path.is_dir():
        raise ArgumentError(f"{path}: is a folder; give the path of a file to write")
    if not path.parent.is_dir():
        raise ArgumentError(f"{path}: there is no folder {path.parent}; make it first")
    return path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, beside ``path``, whose place it takes when the block ends well; else it is removed.

    Raises MinferError naming the path when it cannot be written (no permission, disk full).
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise MinferError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
