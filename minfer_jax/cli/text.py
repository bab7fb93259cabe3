"""Text in and out: files and stdin as UTF-8, JSON, tables."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minfer_jax.display.text import table_lines
from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.records import json_text


def read_text(source: str) -> str:
    """Text of a file, or of stdin for "-". Raises ArgumentError naming the file."""
    name = "stdin" if source == "-" else source
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ArgumentError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{name}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error


def print_json(value: Any) -> None:
    """One line of JSON on stdout, at once."""
    write(json_text(value, sys.stdout.encoding or "ascii") + "\n")


def write(text: str) -> None:
    """Text on stdout, at once; characters that its encoding lacks become "?".

    Raises BrokenPipeError when nobody reads any more, MinferError when the disk is full or the like.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MinferError(f"the output cannot be written: {error.strerror or error}") from error


def print_table(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> None:
    """Aligned columns on stdout, see :func:`.display.text.table_lines`."""
    for line in table_lines(rows, header):
        write(line + "\n")
