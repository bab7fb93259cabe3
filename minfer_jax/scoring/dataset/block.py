"""A piece of an input."""

from typing import NamedTuple


class Block(NamedTuple):
    """Consecutive rows, which become one shard of the output. index: of the block, from 0. first: number of its first
    row. offset: where that lies, in bytes (JSON lines) or rows from 0 (Parquet). size, sha256: of its bytes (JSON
    lines)."""

    index: int
    first: int
    offset: int
    n_rows: int
    size: int = 0
    sha256: str = ""
