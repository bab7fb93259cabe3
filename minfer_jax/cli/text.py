"""Text in and out: files and stdin as UTF-8, JSON, aligned tables."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from minfer_jax.errors import ArgumentError, MinferError


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
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value)  # the same JSON, all but ASCII escaped
    write(text + "\n")


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
    """Aligned columns on stdout: numbers to the right, the rest to the left, no line longer than its content.

    A string is shown on one line whatever it holds; see :func:`printable`.
    """
    values = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in values]
    lines = [list(header), *cells] if header else cells
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in values) for i in range(len(widths))]
    for line in lines:
        padded = [
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        write("  ".join(padded).rstrip() + "\n")


def printable(text: str) -> str:
    """The text with line ends, terminal commands and the like written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str) -> str:
    """The text between quotes, so that its spaces show."""
    return f'"{printable(text)}"'


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    return printable(str(value))


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)
