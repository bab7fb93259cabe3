"""JSON lines as the input and the output of dataset scoring: one object per line, in UTF-8."""

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from minfer_jax.errors import ArgumentError
from minfer_jax.records import json_text
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.row_scores import Result
from minfer_jax.scoring.rows import BadRow, Columns, Form, Row, as_row

_BOM = b"\xef\xbb\xbf"


def read_json_lines(lines: Iterable[bytes], first: int = 1) -> Iterator[tuple[int, Mapping[str, Any]] | BadRow]:
    """The object of each line with the line's number, from ``first``; empty lines count in the numbering only."""
    for number, line in enumerate(lines, first):
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield _parse(number, line)


def _parse(number: int, line: bytes) -> tuple[int, Mapping[str, Any]] | BadRow:
    try:
        fields = json.loads(line.decode(), parse_constant=_refuse, parse_float=_finite)
    except UnicodeDecodeError as error:
        return BadRow(number, f"byte {error.start} is not UTF-8")
    except (json.JSONDecodeError, RecursionError) as error:
        return BadRow(number, f"not JSON: {error}")
    except ValueError as error:  # NaN, or an integer of thousands of digits
        return BadRow(number, f"not JSON that can be read: {error}")
    return (number, fields) if isinstance(fields, dict) else BadRow(number, "not a JSON object")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number:.20} is too large")
    return float(number)


class JsonLinesSource:
    """A file to score. Raises ArgumentError naming a file that cannot be read."""

    id_type: Any = None  # ids are any JSON value

    def __init__(self, path: Path) -> None:
        self._path = path
        open_binary(path).close()

    def index(self, block_rows: int) -> tuple[list[Block], dict[str, Any]]:
        """The file in blocks, and what identifies its content; rows are lines that are not empty."""
        blocks: list[Block] = []
        whole, digest = hashlib.sha256(), hashlib.sha256()
        first = n_rows = start = end = 0
        with open_binary(self._path) as file:
            for number, line in enumerate(file, 1):
                if line.removeprefix(_BOM if number == 1 else b"").strip():
                    if n_rows == block_rows:
                        blocks.append(Block(len(blocks), first, start, n_rows, end - start, digest.hexdigest()))
                        n_rows, digest = 0, hashlib.sha256()
                    if not n_rows:
                        first, start = number, end
                    n_rows += 1
                if n_rows:
                    digest.update(line)
                whole.update(line)
                end += len(line)
        if n_rows:
            blocks.append(Block(len(blocks), first, start, n_rows, end - start, digest.hexdigest()))
        rows = sum(block.n_rows for block in blocks)
        return blocks, {"file": self._path.name, "bytes": end, "sha256": whole.hexdigest(), "rows": rows}

    def form(self, columns: Columns) -> Form:
        """The form of the first row that has one. Raises ArgumentError when no row has, or that one has no field of a
        name that was given for ids."""
        first: BadRow | None = None
        with open_binary(self._path) as file:
            for item in read_json_lines(file):
                row = item if isinstance(item, BadRow) else as_row(*item, columns)
                if isinstance(row, Row):
                    if columns.id is not None and row.id is None:
                        raise ArgumentError(f"{self._path}: line {row.number} has no {columns.id!r}, the column of ids")
                    return next(form for form in columns.forms() if form.kind == row.kind)
                first = first or row
        reason = f": line {first.number}: {first.reason}" if first else ""
        raise ArgumentError(f"{self._path}: no row can be scored{reason}")

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]] | BadRow]:
        """The rows of a block. Raises ArgumentError when they are not what they were."""
        with open_binary(self._path) as file:
            file.seek(block.offset)
            data = file.read(block.size)
        if hashlib.sha256(data).hexdigest() != block.sha256:
            raise ArgumentError(f"{self._path}: has changed since the run began")
        return read_json_lines(BytesIO(data), block.first)


def open_binary(path: Path) -> BufferedReader:
    """A file to read. Raises ArgumentError naming it."""
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"{path}: cannot be read: {reason}") from error


class JsonLinesOutput:
    """Results as JSON lines. What identifies a run stands in the manifest beside the file."""

    suffix = ".jsonl"

    def shard(self, rows: Sequence[tuple[Row, Result]]) -> bytes:
        """The file of some results."""
        return json_lines(as_fields(row, result) for row, result in rows)

    def join(self, shards: Iterable[Path], file: BinaryIO, about: Mapping[str, Any]) -> None:
        """Write the results of all shards, in order."""
        for shard in shards:
            with shard.open("rb") as part:
                shutil.copyfileobj(part, file)


def as_fields(row: Row | BadRow, result: Result | None = None) -> dict[str, Any]:
    """A result, or why there is none, with the number and the id of its row."""
    head = {"row": row.number} | ({} if row.id is None else {"id": row.id})
    if isinstance(row, BadRow):
        return head | {"error": row.reason}
    return head | (result.to_dict() if result else {})


def json_lines(values: Iterable[Any]) -> bytes:
    """Each value on a line."""
    return b"".join(json_text(value).encode() + b"\n" for value in values)
