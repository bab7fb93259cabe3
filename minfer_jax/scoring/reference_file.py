"""The distributions of a reference model over a text, in a file.

Layout, little-endian: the magic ``MINFERKL``; uint32, length of the header; the header, JSON in UTF-8 (see ``Header``);
the ids as fed, int32 [chunks, n_ctx]; then for each chunk its scored rows, each of step, floor, logprob (float32), top
(int32) and the codes (uint16 [vocab]) of ``ReferenceRows``, and the CRC-32 of those rows (uint32). Size, ids and rows
are checked when they are read.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.files import written_whole
from minfer_jax.scoring.chunks import Chunks, scored_of
from minfer_jax.scoring.divergence import ReferenceRows
from minfer_jax.scoring.kld_file import KLD_MAGIC, KLDFile, check_size, open_kld, read_exactly

_MAGIC = b"MINFERKL"
_VERSION = 1
_MOST_HEADER = 1 << 20
_MOST_TOKENS = 1 << 28
_CRC_BYTES = 4


@dataclass(frozen=True)
class Header:
    """version: of the layout. protocol: how the text was cut. n_tokens: ids of the text. n_chunks, n_ctx: of the ids
    kept. vocab_size, vocab_sha256: of the vocabulary. ids_sha256: of the ids as they lie in the file. model: provenance
    of the reference, with the sha256 of its file."""

    version: int
    protocol: str
    n_tokens: int
    n_chunks: int
    n_ctx: int
    vocab_size: int
    vocab_sha256: str
    ids_sha256: str
    model: dict[str, Any]


class ReferenceWriter:
    """Takes the rows of one chunk after the other. Made by :func:`write_reference`."""

    def __init__(self, file: BinaryIO, vocab_size: int) -> None:
        self._file, self._row = file, _row_type(vocab_size)
        self._crc = 0

    def add(self, rows: ReferenceRows) -> None:
        """The next packed rows of a chunk."""
        host = jax.device_get(rows)
        records = np.empty(len(host.top), self._row)
        for name, values in host._asdict().items():
            records[name] = values
        data = records.tobytes()
        self._crc = zlib.crc32(data, self._crc)
        self._file.write(data)

    def end_chunk(self) -> None:
        """All rows of a chunk are there."""
        self._file.write(self._crc.to_bytes(_CRC_BYTES, "little"))
        self._crc = 0


@contextmanager
def write_reference(
    path: Path, chunks: Chunks, vocab_size: int, vocab_sha256: str, model: dict[str, Any]
) -> Iterator[ReferenceWriter]:
    """A writer for the rows of ``chunks``; the file takes its name when all are in it.

    Raises MinferError naming the path when it cannot be written.
    """
    ids = chunks.ids.astype("<i4").tobytes()
    header = Header(
        version=_VERSION,
        protocol="llama.cpp",
        n_tokens=chunks.n_tokens,
        n_chunks=len(chunks.ids),
        n_ctx=chunks.n_ctx,
        vocab_size=vocab_size,
        vocab_sha256=vocab_sha256,
        ids_sha256=hashlib.sha256(ids).hexdigest(),
        model=model,
    )
    text = json.dumps(asdict(header)).encode()
    with written_whole(path) as file:
        file.write(_MAGIC + len(text).to_bytes(4, "little") + text + ids)
        yield ReferenceWriter(file, vocab_size)


class ReferenceFile:
    """A saved reference, open for reading from the first chunk to the last. Made by :func:`open_reference`.

    name: of the file, for messages. chunks: the ids. about: provenance of the reference. vocab_size, vocab_sha256: of
    the vocabulary. is_cut: unlikely tokens were not kept, see ``compare_rows``.
    """

    is_cut = False

    def __init__(self, file: BinaryIO, name: str, header: Header, chunks: Chunks) -> None:
        self.name, self.chunks, self.about = name, chunks, header.model
        self.vocab_size, self.vocab_sha256 = header.vocab_size, header.vocab_sha256
        self._file, self._row = file, _row_type(header.vocab_size)
        self._crc = 0

    def ids_after(self, prefix: list[int]) -> np.ndarray:
        """The ids as a model is fed them: as the reference was, whatever the model's own prefix."""
        return self.chunks.ids

    def read(self, targets: np.ndarray) -> ReferenceRows:
        """The next rows of a chunk, on the host, for as many ids that they are to predict."""
        data = read_exactly(self._file, len(targets) * self._row.itemsize, self.name)
        self._crc = zlib.crc32(data, self._crc)
        records = np.frombuffer(data, self._row)
        return ReferenceRows(*(np.ascontiguousarray(records[name]) for name in ReferenceRows._fields))

    def end_chunk(self) -> None:
        """All rows of a chunk have been read: check that they are what was written. Raises MinferError."""
        if read_exactly(self._file, _CRC_BYTES, self.name) != self._crc.to_bytes(_CRC_BYTES, "little"):
            raise MinferError(f"{self.name}: the stored distributions are damaged; save the reference again")
        self._crc = 0

    def check_vocabulary(self, tokens: list[str], model: str) -> None:
        """Raise ArgumentError unless these are the tokens of the reference. model: name of theirs."""
        check_vocabulary(tokens, model, self.vocab_size, self.vocab_sha256, f"the reference in {self.name}")


def is_reference(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a saved reference does, ours or llama.cpp's."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_MAGIC)) in (_MAGIC, KLD_MAGIC)
    except (OSError, ValueError):
        return False


@contextmanager
def open_reference(path: str | os.PathLike[str]) -> Iterator[ReferenceFile | KLDFile]:
    """A saved reference, ours or llama.cpp's, its header, ids and size checked.

    Raises ArgumentError (no path, or it cannot be read), MinferError (not such a file, cut off, damaged, or of a later
    version), each naming the file.
    """
    name = os.fspath(path)
    try:
        file = Path(path).open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"{name}: cannot be read: {reason}") from error
    with file:
        magic = file.read(len(_MAGIC))
        if magic == _MAGIC:
            yield _open_ours(file, name)
        elif magic == KLD_MAGIC:
            yield open_kld(file, name)
        else:
            raise MinferError(f"{name}: not a saved reference; give a file that save_reference (kl --save) wrote")


def _open_ours(file: BinaryIO, name: str) -> ReferenceFile:
    header = _header(read_exactly(file, _length(file, name), name), name)
    n_ids = header.n_chunks * header.n_ctx
    rows = scored_of(header.n_ctx) * _row_type(header.vocab_size).itemsize
    check_size(file, 4 * n_ids + header.n_chunks * (rows + _CRC_BYTES), name)
    ids = read_exactly(file, 4 * n_ids, name)
    if hashlib.sha256(ids).hexdigest() != header.ids_sha256:
        raise MinferError(f"{name}: the stored ids are damaged; save the reference again")
    chunks = Chunks(np.frombuffer(ids, "<i4").reshape(header.n_chunks, header.n_ctx), header.n_tokens)
    return ReferenceFile(file, name, header, chunks)


def check_vocabulary(tokens: list[str], model: str, size: int, sha256: str, other: str) -> None:
    """Raise ArgumentError unless a model's tokens are so many and have this hash. other: whose these are."""
    if len(tokens) != size:
        raise ArgumentError(
            f"{model} has {len(tokens)} tokens and {other} {size}; KL divergence needs the same vocabulary"
        )
    if vocabulary_sha256(tokens) != sha256:
        raise ArgumentError(
            f"{model} and {other} have other tokens in vocabularies of one size; KL divergence needs the same"
        )


def vocabulary_sha256(tokens: list[str]) -> str:
    """What two vocabularies have in common when they are the same."""
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _row_type(vocab_size: int) -> np.dtype:
    scalars = [("step", "<f4"), ("floor", "<f4"), ("logprob", "<f4"), ("top", "<i4")]
    return np.dtype([*scalars, ("values", "<u2", (vocab_size,))])


def _length(file: BinaryIO, name: str) -> int:
    length = int.from_bytes(read_exactly(file, 4, name), "little")
    if length > _MOST_HEADER:
        raise _damaged(name)
    return length


def _header(text: bytes, name: str) -> Header:
    try:
        values = json.loads(text)
    except ValueError:
        raise _damaged(name) from None
    if isinstance(values, dict) and values.get("version", _VERSION) != _VERSION:
        raise MinferError(f"{name}: layout version {values['version']!r:.20}, not {_VERSION}; use a newer minfer-jax")
    expected = {field.name: field.type if field.type in (int, str) else dict for field in fields(Header)}
    if not isinstance(values, dict) or {key: type(value) for key, value in values.items()} != expected:
        raise _damaged(name)
    header = Header(**values)
    if header.n_chunks < 1 or header.n_ctx < 4 or not 1 <= header.vocab_size <= _MOST_TOKENS:
        raise _damaged(name)
    return header


def _damaged(name: str) -> MinferError:
    return MinferError(f"{name}: the header is damaged; save the reference again")
