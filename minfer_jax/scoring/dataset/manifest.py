"""What stands beside a file of results: the manifest, which says what was scored by what; the rows that could not be;
and, until all is there, the folder of finished shards."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.files import sha256_of
from minfer_jax.records import json_text


def folder_of(target: Path) -> Path:
    """Where shards lie until all are there."""
    return target.with_name(f"{target.name}.parts")


def errors_of(target: Path) -> Path:
    """The rows that could not be scored, as JSON lines."""
    return target.with_name(f"{target.name}.errors.jsonl")


def manifest_of(target: Path) -> Path:
    """What was scored by what, as JSON: what identifies the run, ``counts``, and ``files``, the sha256 of each."""
    return target.with_name(f"{target.name}.manifest.json")


def read_manifest(path: Path) -> dict[str, Any]:
    """Raises MinferError when it is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MinferError(f"{path}: is no manifest of a run ({error}); remove it and what it belongs to") from error
    if not isinstance(value, dict) or not isinstance(value.get("model"), dict):
        raise MinferError(f"{path}: is no manifest of a run; remove it and what it belongs to")
    return value


def finished_counts(target: Path, about: Mapping[str, Any], resume: bool) -> dict[str, int] | None:
    """The counts of a target that is whole; None when there is none yet. about: what identifies the run.

    Raises ArgumentError when there is a file of its name and no resume, when it is of another run, or not what the run
    has written.
    """
    if not target.exists():
        return None
    written = manifest_of(target)
    if not resume or not written.exists():
        raise ArgumentError(f"{target}: exists; remove it, or give another name")
    manifest = read_manifest(written)
    check_same(manifest, about, written)
    for name, digest in manifest["files"].items():
        if not (path := target.with_name(name)).is_file() or sha256_of(path) != digest:
            raise ArgumentError(f"{path}: is not as the run left it; remove it and {written}")
    return manifest["counts"]


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    """Raise ArgumentError naming the first thing in which an earlier run is another than this one. The names of files
    may differ: their content tells them apart."""
    for key, value in _flat(json.loads(json_text(ours))).items():
        before = _flat(theirs).get(key)
        if before != value and not key.endswith(".file"):
            raise ArgumentError(
                f"{path}: {key} was {before!r:.80} and is {value!r:.80}; resume with the same, or give another name"
            )


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat
