"""Which files make up one model: split sets (``name-00001-of-00003.gguf``) and folders.

The convention is llama.cpp's: file names count parts from 1, the key ``split.no`` from 0; every part repeats
``split.count`` and ``split.tensors.count``; only the first part carries the architecture and the tokenizer.
"""

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minfer_jax.errors import GGUFError
from minfer_jax.gguf.cursor import shown
from minfer_jax.gguf.metadata import REQUIRED, Metadata

_PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)

# Keys that describe one part and so may differ between parts.
_PER_PART = ("split.no", "general.alignment")


class PartName(NamedTuple):
    """What the name of a part says; `number` counts from 1."""

    prefix: str
    number: int
    count: int

    def sibling(self, number: int) -> str:
        """Return the file name of another part."""
        return f"{self.prefix}-{number:05d}-of-{self.count:05d}.gguf"


def part_name(path: Path) -> PartName | None:
    """Return the split named by a path, or None for a file of its own (``-00001-of-00001`` is one too)."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None or (count := int(match["count"])) <= 1:
        return None
    return PartName(match["prefix"], int(match["number"]), count)


def part_paths(path: Path) -> tuple[Path, ...]:
    """Return all files of the model that `path` belongs to, in order.

    Args:
        path: a file, any part of a split, or a folder that holds one model.

    Raises:
        GGUFError: a part is missing, or the folder holds no model or several.
    """
    if os.path.isdir(path):
        path = _only_model(path)
    name = part_name(path)
    if name is None:
        return (path,)
    if not 1 <= name.number <= name.count:
        raise GGUFError(f"{path}: the name says part {name.number} of {name.count}; rename it as it was")
    if not os.path.exists(path):
        raise GGUFError(f"{path}: no such file or folder")
    # One listing of the folder: a name that claims 99,999 parts must not cost as many look-ups.
    present = {entry.name for entry in _entries(path.parent)}
    missing = [sibling for n in range(1, name.count + 1) if (sibling := name.sibling(n)) not in present]
    if missing:
        raise GGUFError(
            f"{path}: part of a model split in {name.count}, of which {_listed(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; put all parts beside {name.sibling(1)}"
        )
    return tuple(path.parent / name.sibling(n) for n in range(1, name.count + 1))


def _only_model(folder: Path) -> Path:
    models: dict[str, list[Path]] = defaultdict(list)
    for file in _entries(folder):
        if file.suffix.lower() != ".gguf" or not file.is_file():
            continue
        name = part_name(file)
        models[file.name if name is None else f"{name.prefix}-*-of-{name.count:05d}.gguf"].append(file)
    if not models:
        raise GGUFError(f"{folder}: no .gguf file in this folder; give a file, or a folder that holds one model")
    if len(models) > 1:
        described = [
            f"{label} ({len(found)} of {name.count} parts)" if (name := part_name(found[0])) else label
            for label, found in models.items()
        ]
        raise GGUFError(f"{folder}: {len(models)} models in this folder: {_listed(described)}; give one of them")
    return next(iter(models.values()))[0]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise GGUFError(f"{folder}: cannot be read ({error.strerror or error})") from None


def check_part(path: Path, metadata: Metadata) -> None:
    """Check that the name of a file and its own split keys tell the same story.

    Raises:
        GGUFError: they disagree: the file was renamed, or belongs to another split.
    """
    name = part_name(path)
    count = metadata.integer("split.count", 1)
    if name is None:
        if count > 1:
            number = metadata.integer("split.no") + 1
            raise GGUFError(
                f"{path}: the metadata says part {number} of {count}, but the name does not; rename it to "
                f"NAME-{number:05d}-of-{count:05d}.gguf beside the other parts"
            )
        return
    if "split.count" not in metadata:
        raise GGUFError(
            f"{path}: the name says part {name.number} of {name.count}, but the metadata names no split; "
            "it is not a part of this model (rename it if it is a whole one)"
        )
    number = metadata.integer("split.no") + 1
    if (number, count) != (name.number, name.count):
        raise GGUFError(
            f"{path}: the name says part {name.number} of {name.count}, its metadata (split.no, split.count) "
            f"part {number} of {count}; it belongs to another split"
        )


def check_agreement(paths: tuple[Path, ...], metadata: list[Metadata], tensor_names: list[list[str]]) -> None:
    """Check that the parts of a split belong together.

    Raises:
        GGUFError: a part repeats a key with another value, two parts hold the same tensor, or the number of
            tensors is not the announced one; the message names the part.
    """
    first = metadata[0]
    owner: dict[str, Path] = {}
    for path, values, names in zip(paths, metadata, tensor_names, strict=True):
        repeated = [] if values is first else [key for key in values if key in first and key not in _PER_PART]
        for key in repeated:
            if not _equal(values[key], first[key]):
                raise GGUFError(
                    f"{path}: {shown(key)} is not what {paths[0].name} holds; it is not a part of this model"
                )
        for name in names:
            if name in owner:
                raise GGUFError(
                    f"{path}: tensor {shown(name)} is also in {owner[name].name}; one of the parts is wrong"
                )
            owner[name] = path
    # One file: the key is optional, and stale where tools that merge parts set split.count to 0.
    alone = len(paths) == 1
    if alone and first.integer("split.count", 0) == 0:
        return
    announced = first.integer("split.tensors.count", len(owner) if alone else REQUIRED)
    if announced != len(owner):
        place = "the file holds" if alone else f"the {len(paths)} parts hold"
        raise GGUFError(
            f"{paths[0]}: split.tensors.count announces {announced} tensors, {place} {len(owner)}; "
            f"{'it' if alone else 'a part'} is not the right one"
        )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return type(left) is type(right) and np.array_equal(left, right)
    return type(left) is type(right) and left == right


def _listed(names: list[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
