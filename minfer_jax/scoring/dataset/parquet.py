"""Parquet as the input and the output of dataset scoring. Needs pyarrow."""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from minfer_jax.errors import ArgumentError
from minfer_jax.files import sha256_of
from minfer_jax.records import json_text
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.json_lines import as_fields
from minfer_jax.scoring.results import MultipleChoice, Score, TextScore
from minfer_jax.scoring.row_scores import Result
from minfer_jax.scoring.rows import BadRow, Columns, Form, Row, form_of, why_no_form

_BUFFER = 1 << 20  # bytes of a column that are read at once, however large its row groups are
_BATCH = 1024  # rows that are read at once
_ROW_GROUP = 1 << 15  # rows of a row group that is written


class ParquetSource:
    """A file to score. Raises ArgumentError naming a file that cannot be read or is no Parquet."""

    def __init__(self, path: Path, id_column: str) -> None:
        self._path, self._id = path, id_column
        self._found = _stamp(path)
        with self._explained():
            file = pq.ParquetFile(path)
            self._schema, self._n_rows = file.schema_arrow, file.metadata.num_rows
        self._names: list[str] | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._batch, self._start = pa.record_batch({}), self._n_rows  # the batch at hand, and its first row

    def index(self, block_rows: int) -> tuple[list[Block], dict[str, Any]]:
        """The file in blocks, and what identifies its content."""
        with self._explained():
            digest = sha256_of(self._path)
        starts = enumerate(range(0, self._n_rows, block_rows))
        blocks = [Block(i, start + 1, start, min(block_rows, self._n_rows - start)) for i, start in starts]
        return blocks, {"file": self._path.name, "bytes": self._found[0], "sha256": digest, "rows": self._n_rows}

    @property
    def id_type(self) -> pa.DataType | None:
        """Of the id column where an output has ids of the same; None: they become texts."""
        if self._id not in self._schema.names:
            return None
        kind = self._schema.field(self._id).type
        return kind if pa.types.is_integer(kind) or _is_text(kind) else None

    def form(self, columns: Columns) -> Form:
        """The form of the columns, which alone are read from now on. Raises ArgumentError when they have none, columns
        of it hold other things than texts, or a name that was given for ids is no column."""
        names, forms = self._schema.names, columns.forms()
        form = form_of(names, forms)
        if form is None:
            raise ArgumentError(f"{self._path}: {why_no_form(names, forms)}")
        if columns.id is not None and columns.id not in names:
            raise ArgumentError(
                f"{self._path}: has no column {columns.id!r} of ids; its columns are {', '.join(names)}"
            )
        self._names = [*form.names, *([self._id] if self._id in names else [])]
        for name in self._names:
            if names.count(name) > 1:
                raise ArgumentError(f"{self._path}: has {names.count(name)} columns {name!r}; name each differently")
        for part, name in form.fields.items():
            kind = self._schema.field(name).type
            if part == "choices" and not (_is_list(kind) and _is_text(kind.value_type)):
                raise ArgumentError(f"{self._path}: column {name} is of type {kind}; give lists of texts")
            if part != "choices" and not _is_text(kind):
                raise ArgumentError(f"{self._path}: column {name} is of type {kind}; give texts")
        return form

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]] | BadRow]:
        """The rows of a block, ids of odd types as texts. Cheap for blocks that come in order.

        Raises ArgumentError when the file has changed since it was opened.
        """
        row, end = block.offset, block.offset + block.n_rows
        if row < self._start:
            self._restart(row)
        while row < end:
            after = self._start + self._batch.num_rows
            with self._explained():
                if _stamp(self._path) != self._found:
                    raise ArgumentError(f"{self._path}: has changed since the run began")
                if row >= after:
                    self._batch, self._start = next(self._batches), after
                    continue
                part = self._batch.slice(row - self._start, end - row)
                rows = part.to_pylist()
            for values in rows:
                row += 1
                yield row, values | {self._id: _as_json(values.get(self._id))}

    def _restart(self, row: int) -> None:
        """Read from the row group that holds the row."""
        with self._explained():
            file = pq.ParquetFile(self._path, buffer_size=_BUFFER, pre_buffer=False)
            start = group = 0
            while row >= start + (size := file.metadata.row_group(group).num_rows):
                start, group = start + size, group + 1
            groups = list(range(group, file.metadata.num_row_groups))
            self._batches = file.iter_batches(_BATCH, groups, self._names)
            self._batch, self._start = pa.record_batch({}), start

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ArgumentError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ArgumentError(f"{self._path}: cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _stamp(path: Path) -> tuple[int, int]:
    """What another content would change: size, and time of the last change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _as_json(value: Any) -> Any:
    """An id as JSON can have it."""
    plain = value is None or isinstance(value, str | int) or isinstance(value, float) and math.isfinite(value)
    return value if plain else str(value)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


_KINDS = {"pair": Score, "choices": MultipleChoice, "text": TextScore}
_FLAG, _INDEX, _TEXT = pa.bool_(), pa.int32(), pa.string()
_TYPES = {
    "logprob": pa.float64(),
    "token_logprobs": pa.list_(pa.float32()),
    "tokens": pa.list_(_INDEX),
    "prefix": pa.list_(_INDEX),
    "windows": _INDEX,
    "context": _TEXT,
    "choices": pa.list_(_TEXT),
    **dict.fromkeys(("is_greedy", "truncated", "empty", "merged"), _FLAG),
    **dict.fromkeys(("sums", "per_token", "per_byte"), pa.list_(pa.float64())),
    **dict.fromkeys(("best_by_sum", "best_by_token", "best_by_byte"), _INDEX),
}
_TYPES["scores"] = pa.list_(pa.struct([(field.name, _TYPES[field.name]) for field in fields(Score)]))


class ParquetOutput:
    """Results as a Parquet file: row, id and the fields of the results of one kind. What identifies a run stands in the
    file's metadata too, as JSON under ``minfer_jax``."""

    suffix = ".parquet"

    def __init__(self, kind: str, id_type: pa.DataType | None) -> None:
        columns = [(field.name, _TYPES[field.name]) for field in fields(_KINDS[kind])]
        self._schema = pa.schema([("row", pa.int64()), ("id", _TEXT if id_type is None else id_type), *columns])
        self._has_own_ids = id_type is not None

    def shard(self, rows: Sequence[tuple[Row, Result]]) -> bytes:
        """The file of some results."""
        records = [{"id": None} | as_fields(*row) for row in rows]
        if not self._has_own_ids:
            for record in records:
                record["id"] = _as_text(record["id"])
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(records, self._schema), sink)
        return sink.getvalue().to_pybytes()

    def join(self, shards: Iterable[Path], file: BinaryIO, about: Mapping[str, Any]) -> None:
        """Write the results of all shards, in order."""
        schema = self._schema.with_metadata({"minfer_jax": json.dumps(about)})
        with pq.ParquetWriter(file, schema) as writer:
            tables: list[pa.Table] = []
            for shard in shards:
                tables.append(pq.ParquetFile(shard).read())
                if sum(table.num_rows for table in tables) >= _ROW_GROUP:
                    writer.write_table(pa.concat_tables(tables).replace_schema_metadata(schema.metadata))
                    tables = []
            if tables:
                writer.write_table(pa.concat_tables(tables).replace_schema_metadata(schema.metadata))


def _as_text(value: Any) -> str | None:
    """An id of any JSON type as a text that UTF-8 has."""
    if value is None or isinstance(value, str) and value.encode(errors="replace").decode() == value:
        return value
    return json_text(value)
