"""Files that are there whole or not at all."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from minfer_jax.errors import ArgumentError, MinferError


def check_target(target: str | os.PathLike[str], *sources: Path) -> Path:
    """A path that a file can be written to, while ``sources`` are read.

    Raises ArgumentError when it is no path, in no folder, one of the sources, or something else than a file.
    """
    if not isinstance(target, str | os.PathLike) or not os.fspath(target):
        raise ArgumentError(f"path is {target!r:.80}; give the path of a file to write")
    path = Path(target)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if not path.parent.is_dir():
            raise ArgumentError(f"{path}: there is no folder {path.parent}; make it first") from None
        return path
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"{str(path)!r:.80}: cannot be written: {reason}") from error
    if path.is_dir():
        raise ArgumentError(f"{path}: is a folder; give the path of a file to write")
    if not path.is_file():
        raise ArgumentError(f"{path}: is no regular file; give another file to write")
    if any(source.exists() and path.samefile(source) for source in sources):
        raise ArgumentError(f"{path}: is a file that is read; give another file to write")
    return path


def sha256_of(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
