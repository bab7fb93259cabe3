"""The tensor table becomes raw arrays on the map, after every claim in it is checked."""

import math
import mmap
from collections import Counter
from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from minfer_jax.errors import GGUFError, UnsupportedError
from minfer_jax.gguf.cursor import IMPLAUSIBLE_SIZE, shown, too_short
from minfer_jax.gguf.header import Header, TensorEntry
from minfer_jax.gguf.tensor_types import readable_type, readable_types, type_label


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor as the file stores it.

    Attributes:
        name: the name in the file.
        type: the GGML type of the stored blocks.
        shape: in weights, numpy order: the last axis is contiguous (the file lists it first).
        data: uint8, read-only, a view on the mapped file, shape ``(*shape[:-1], bytes_per_row)``.
        span: the map, and first and last byte of the tensor in it; None for one that is not in a file.
    """

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray
    span: tuple[mmap.mmap, int, int] | None = None

    def release(self) -> None:
        """Let go of the memory that reading ``data`` has taken; what is read again comes from the file again."""
        if self.span and hasattr(mmap, "MADV_DONTNEED"):
            buffer, start, stop = self.span
            start -= start % mmap.PAGESIZE
            buffer.madvise(mmap.MADV_DONTNEED, start, stop - start)


def raw_tensors(buffer: mmap.mmap, header: Header, source: str) -> dict[str, RawTensor]:
    """Return the tensors of one mapped file by name, in file order.

    Raises:
        UnsupportedError: a type is unknown, removed, or one that cannot be dequantised.
        GGUFError: a shape, offset or size cannot be right, tensors overlap, or the file is too short.
    """
    _check_types(header.entries, source)
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for entry in header.entries:
        kind = GGMLQuantizationType(entry.type_number)
        shape, row_bytes = _layout(entry, kind, source)
        n_bytes = math.prod(shape[:-1]) * row_bytes
        if entry.offset % header.alignment:
            raise GGUFError(
                f"{source}: tensor {shown(entry.name)} starts at offset {entry.offset}, "
                f"not a multiple of the alignment {header.alignment}; the file is corrupt"
            )
        start = header.data_start + entry.offset
        spans.append((start, start + n_bytes, entry.name))
        if start + n_bytes <= len(buffer):
            data = np.frombuffer(buffer, np.uint8, n_bytes, start).reshape(*shape[:-1], row_bytes)
            tensors[entry.name] = RawTensor(entry.name, kind, shape, data, (buffer, start, start + n_bytes))
    _check_spans(spans, len(buffer), source)
    return tensors


def _check_types(entries: list[TensorEntry], source: str) -> None:
    numbers = Counter(entry.type_number for entry in entries)
    refused = {number: uses for number, uses in numbers.items() if readable_type(number) is None}
    if not refused:
        return
    # A corrupt table can hold thousands of numbers; the message stays one line that can be read.
    listed = [f"{type_label(n)} in {uses} tensor{'s' * (uses > 1)}" for n, uses in list(refused.items())[:8]]
    listed += [f"{len(refused) - 8} more"] * (len(refused) > 8)
    supported = ", ".join(kind.name for kind in readable_types())
    raise UnsupportedError(
        f"{source}: weights of a type that cannot be read: {', '.join(listed)}; supported types: {supported}"
    )


def _layout(entry: TensorEntry, kind: GGMLQuantizationType, source: str) -> tuple[tuple[int, ...], int]:
    """Return (shape in numpy order, bytes per row)."""
    shape = entry.dims[::-1]
    if 0 in shape:
        raise GGUFError(f"{source}: tensor {shown(entry.name)} has a dimension of 0; the file is corrupt")
    if math.prod(shape) >= IMPLAUSIBLE_SIZE:
        raise GGUFError(f"{source}: tensor {shown(entry.name)} claims {math.prod(shape)} elements; the file is corrupt")
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_size:
        raise GGUFError(
            f"{source}: tensor {shown(entry.name)} has rows of {shape[-1]} elements, "
            f"not a multiple of the {block_size} in a {kind.name} block; the file is corrupt"
        )
    return shape, shape[-1] // block_size * block_bytes


def _check_spans(spans: list[tuple[int, int, str]], size: int, source: str) -> None:
    """Check (start, stop, name) of every tensor, in bytes of the file: inside the file, none over another."""
    if not spans:
        return
    _, stop, name = max(spans, key=lambda span: span[1])
    if stop > size:
        raise too_short(source, size, stop, f"tensor {shown(name)}", at_least=False)
    ordered = sorted(spans)
    for (_, stop, name), (start, _, following) in zip(ordered, ordered[1:], strict=False):
        if start < stop:
            raise GGUFError(f"{source}: tensors {shown(name)} and {shown(following)} overlap; the file is corrupt")
