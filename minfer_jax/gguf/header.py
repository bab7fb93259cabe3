"""The header walk: version, metadata and tensor table of one GGUF file.

Our own walk, not ``gguf.GGUFReader``: that one takes nine seconds for a vocabulary of 262,144 entries, loops
for minutes on a false array count, recurses on nested arrays and lets offsets wrap round. The enumerations
are the library's.

Text: keys and tensor names must be UTF-8. String values that are not are kept with U+FFFD in place of the bad
bytes, and logged once per key, because vocabularies with stray bytes exist and most of such a file is sound.
"""

import logging
import mmap
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGUFValueType

from minfer_jax.errors import GGUFError
from minfer_jax.gguf.cursor import Cursor, shown

DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # ggml's own limit

_log = logging.getLogger(__name__)

_NUMBERS: dict[GGUFValueType, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "B",
}
_LAYOUTS = {kind: struct.Struct("<" + code) for kind, code in _NUMBERS.items()}
_DTYPES = {kind: np.dtype("<" + code) for kind, code in _NUMBERS.items()}

# The smallest entries: key length, value type, one byte; name length, number of dimensions, type, offset.
_LEAST_PAIR = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8


@dataclass(frozen=True)
class TensorEntry:
    """One line of the tensor table as written: `dims` in file order, nothing checked but their number."""

    name: str
    dims: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensor data; `data_start` is the byte where offsets count from, `pairs` the first byte and
    end of each key-value pair."""

    version: int
    values: dict[str, Any]
    pairs: dict[str, tuple[int, int]]
    entries: list[TensorEntry]
    alignment: int
    data_start: int


def read_header(buffer: mmap.mmap, source: str) -> Header:
    """Walk the header of a mapped file whose magic and version are already checked.

    Args:
        buffer: the whole file.
        source: the file's name in messages.

    Raises:
        GGUFError: the header is cut off, repeats a key or name, or holds a value the format does not allow.
    """
    cursor = Cursor(buffer, source, position=4)
    version = cursor.u32("the version")
    n_tensors = cursor.u64("the number of tensors")
    n_pairs = cursor.u64("the number of metadata keys")
    cursor.room(n_pairs, _LEAST_PAIR, "the metadata")
    values: dict[str, Any] = {}
    pairs: dict[str, tuple[int, int]] = {}
    for index in range(n_pairs):
        start = cursor.position
        key = _name(cursor, f"metadata key {index} of {n_pairs}")
        if key in values:
            raise GGUFError(f"{source}: metadata key {shown(key)} occurs twice; the file is corrupt")
        values[key] = _value(cursor, key)
        pairs[key] = start, cursor.position
    cursor.room(n_tensors, _LEAST_TENSOR, "the tensor table")
    entries = _tensor_table(cursor, n_tensors)
    alignment = _alignment(values, source)
    data_start = -(-cursor.position // alignment) * alignment
    return Header(version, values, pairs, entries, alignment, data_start)


def _name(cursor: Cursor, what: str) -> str:
    raw = cursor.string(what)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise GGUFError(f"{cursor.source}: {what} is not UTF-8 text ({shown(raw)}); the file is corrupt") from None


def _value(cursor: Cursor, key: str) -> Any:
    where = f"metadata key {shown(key)}"
    kind = _value_type(cursor, where)
    if kind is GGUFValueType.STRING:
        return _texts([cursor.string(where)], cursor.source, where)[0]
    if kind is not GGUFValueType.ARRAY:
        number = cursor.scalar(_LAYOUTS[kind], where)
        return number != 0 if kind is GGUFValueType.BOOL else number
    item = _value_type(cursor, where)
    count = cursor.u64(where)
    if item is GGUFValueType.ARRAY:
        raise GGUFError(f"{cursor.source}: {where} is an array of arrays, which is not read; no known model needs it")
    if item is GGUFValueType.STRING:
        return _texts(cursor.strings(count, where), cursor.source, where)
    dtype = _DTYPES[item]
    start = cursor.advance(count * dtype.itemsize, f"{where}, an array of {count}")
    # A copy: small, aligned, and independent of the mapped file.
    array = np.frombuffer(cursor.buffer, dtype, count, start) if count else np.empty(0, dtype)
    array = array != 0 if item is GGUFValueType.BOOL else array.copy()
    array.flags.writeable = False
    return array


def _value_type(cursor: Cursor, where: str) -> GGUFValueType:
    number = cursor.u32(where)
    try:
        return GGUFValueType(number)
    except ValueError:
        raise GGUFError(f"{cursor.source}: {where} has the unknown value type {number}; the file is corrupt") from None


def _texts(raw: list[bytes], source: str, where: str) -> list[str]:
    try:
        return [piece.decode() for piece in raw]
    except UnicodeDecodeError:
        _log.warning("%s: %s holds bytes that are not UTF-8; they are read as U+FFFD", source, where)
        return [piece.decode(errors="replace") for piece in raw]


def _tensor_table(cursor: Cursor, count: int) -> list[TensorEntry]:
    entries: list[TensorEntry] = []
    names: set[str] = set()
    for index in range(count):
        name = _name(cursor, f"the name of tensor {index} of {count}")
        where = f"the table entry of tensor {shown(name)}"
        if name in names:
            raise GGUFError(f"{cursor.source}: tensor {shown(name)} occurs twice; the file is corrupt")
        names.add(name)
        n_dims = cursor.u32(where)
        if not 1 <= n_dims <= MAX_DIMS:
            raise GGUFError(
                f"{cursor.source}: tensor {shown(name)} has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed"
            )
        dims = tuple(cursor.u64(where) for _ in range(n_dims))
        type_number = cursor.u32(where)
        entries.append(TensorEntry(name, dims, type_number, cursor.u64(where)))
    return entries


def _alignment(values: dict[str, Any], source: str) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        found = alignment if isinstance(alignment, int | float) else type(alignment).__name__
        raise GGUFError(f"{source}: general.alignment is {found}; it must be a power of two of at least 8")
    return alignment
