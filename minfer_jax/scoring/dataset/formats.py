"""The formats of datasets, by the ends of file names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, Protocol

from minfer_jax.errors import ArgumentError, UnsupportedError
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.json_lines import JsonLinesOutput, JsonLinesSource, open_binary
from minfer_jax.scoring.row_scores import Result
from minfer_jax.scoring.rows import BadRow, Columns, Form, Row

_PARQUET = ".parquet"


class Source(Protocol):
    """A file of rows."""

    @property
    def id_type(self) -> Any:
        """The type of ids for an output in the same format; None: they can be of any."""

    def index(self, block_rows: int) -> tuple[list[Block], dict[str, Any]]:
        """The file in blocks of so many rows, and what identifies its content: file, bytes, sha256, rows."""
        ...

    def form(self, columns: Columns) -> Form:
        """The form of the rows. Raises ArgumentError naming the file when they have none, or no id that was named."""
        ...

    def read(self, block: Block) -> Iterator[tuple[int, Mapping[str, Any]] | BadRow]:
        """The rows of a block, each its number and fields. Raises ArgumentError when the file has changed."""
        ...


class Output(Protocol):
    """How results are written. suffix: of the file's name."""

    suffix: str

    def shard(self, rows: Sequence[tuple[Row, Result]]) -> bytes:
        """The file of some results."""
        ...

    def join(self, shards: Iterable[Path], file: BinaryIO, about: Mapping[str, Any]) -> None:
        """Write the results of all shards into one file, in order. about: the manifest."""
        ...


def open_source(path: Path, columns: Columns) -> Source:
    """A Parquet file by its name, else JSON lines. Raises ArgumentError naming a file that cannot be read."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ArgumentError(f"{path}: is no regular file; write the rows to one first")
    open_binary(path).close()
    if path.suffix.lower() == _PARQUET:
        return _parquet(path).ParquetSource(path, columns.id_name)
    return JsonLinesSource(path)


def output_for(path: Path, kind: str, id_type: Any) -> Output:
    """How results of a kind are written under that name. Raises ArgumentError when its end names no format."""
    if path.suffix.lower() == _PARQUET:
        return _parquet(path).ParquetOutput(kind, id_type)
    if path.suffix.lower() == JsonLinesOutput.suffix:
        return JsonLinesOutput()
    raise ArgumentError(f"{path}: results are written as .jsonl or .parquet; give a name that ends so")


def _parquet(path: Path) -> ModuleType:
    try:
        from minfer_jax.scoring.dataset import parquet
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise UnsupportedError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from error
    return parquet
