"""Opening a model: one file, any part of a split, or a folder."""

import hashlib
import math
import mmap
import os
from collections import Counter
from pathlib import Path

from minfer_jax.errors import ArgumentError
from minfer_jax.gguf.header import read_header
from minfer_jax.gguf.metadata import Metadata
from minfer_jax.gguf.source import map_file
from minfer_jax.gguf.splits import check_agreement, check_part, part_paths
from minfer_jax.gguf.tensors import RawTensor, raw_tensors

_HASH_CHUNK = 1 << 24


class GGUFFile:
    """An opened model: checked metadata, and tensors as views on the memory map. Made by :func:`open_gguf`.

    Attributes:
        paths: the files, in order of their parts.
        size: bytes in all parts together.
        version: GGUF version of the first part.
        metadata: the key-value pairs of the first part.
        tensors: the tensors of all parts by name, in file order.
        pairs: first byte and end of each key-value pair in the first part.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        maps: tuple[mmap.mmap, ...],
        version: int,
        metadata: Metadata,
        tensors: dict[str, RawTensor],
        pairs: dict[str, tuple[int, int]],
    ) -> None:
        self.paths = paths
        self.size: int = sum(len(mapped) for mapped in maps)
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self.pairs = pairs
        self._maps = maps
        self._sha256: str | None = None

    @property
    def name(self) -> str:
        """File name of the first part, for messages."""
        return self.paths[0].name

    @property
    def n_parameters(self) -> int:
        """Number of weights in all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight takes on average, over all tensors."""
        return 8 * sum(tensor.data.nbytes for tensor in self.tensors.values()) / max(self.n_parameters, 1)

    def type_counts(self) -> dict[str, int]:
        """How many tensors have each type, by the type's name, the most frequent first."""
        return dict(Counter(tensor.type.name for tensor in self.tensors.values()).most_common())

    def pair_bytes(self, key: str) -> bytes:
        """A key with its value as they lie in the file."""
        start, end = self.pairs[key]
        return self._maps[0][start:end]

    def sha256(self) -> str:
        """Return the SHA-256 (hex) of all parts in order, as if joined; computed once, from the map."""
        if self._sha256 is None:
            digest = hashlib.sha256()
            for mapped in self._maps:
                with memoryview(mapped) as view:
                    # In chunks, so that Ctrl-C works in a large file.
                    for start in range(0, len(view), _HASH_CHUNK):
                        digest.update(view[start : start + _HASH_CHUNK])
            self._sha256 = digest.hexdigest()
        return self._sha256

    def __repr__(self) -> str:
        parts = f", {len(self.paths)} parts" if len(self.paths) > 1 else ""
        return f"GGUFFile({self.name}{parts}, {self.size} bytes, {len(self.tensors)} tensors)"


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF model and check everything its headers claim; no weight is read.

    Args:
        path: a file, any part of a split model, or a folder that holds one model (split or not).

    Raises:
        GGUFError: missing, cut off, corrupt, not GGUF, or parts that do not belong together.
        UnsupportedError: weights of a type that cannot be read.
        ArgumentError: `path` is not a path.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise ArgumentError(f"path must be the path of a GGUF file or folder, not {path!r}")
    paths = part_paths(Path(path))
    maps: list[mmap.mmap] = []
    parts: list[dict[str, RawTensor]] = []
    metadata: list[Metadata] = []
    version = 0
    pairs: dict[str, tuple[int, int]] = {}
    for part in paths:
        mapped = map_file(part)
        header = read_header(mapped, str(part))
        values = Metadata(header.values, part.name)
        check_part(part, values)
        version, pairs = version or header.version, pairs or header.pairs
        maps.append(mapped)
        metadata.append(values)
        parts.append(raw_tensors(mapped, header, str(part)))
    check_agreement(paths, metadata, [list(tensors) for tensors in parts])
    tensors = {name: tensor for part_tensors in parts for name, tensor in part_tensors.items()}
    return GGUFFile(paths, tuple(maps), version, metadata[0], tensors, pairs)
