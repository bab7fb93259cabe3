"""The output of dataset scoring while it grows: a folder of finished shards, that a later run goes on from.

``scores.jsonl.parts`` holds a manifest, and for each finished shard its results, its bad rows if there are some, and
last a record with counts and the sha256 of both: a shard that does not fit its record is made again. When all shards
are there, ``scores.jsonl.errors.jsonl`` (if there are bad rows), ``scores.jsonl.manifest.json`` and at the end
``scores.jsonl`` take their names, and the folder goes.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.files import sha256_of, written_whole
from minfer_jax.records import json_text
from minfer_jax.scoring.dataset.formats import Output
from minfer_jax.scoring.dataset.manifest import check_same, errors_of, folder_of, manifest_of, read_manifest


class Shard(NamedTuple):
    """Results of a block. data: their file. errors: bad rows as JSON lines. counts: of rows and tokens, by what became
    of them."""

    index: int
    data: bytes
    errors: bytes
    counts: dict[str, int]


class Shards:
    """The finished shards of a target. Made by :func:`open_shards`."""

    def __init__(self, target: Path, output: Output, about: Mapping[str, Any], n_blocks: int) -> None:
        self.folder = folder_of(target)
        self._target, self._output, self._about = target, output, about
        self.counts = {i: record["counts"] for i in range(n_blocks) if (record := self._finished(i)) is not None}

    def keep(self, shard: Shard) -> None:
        """Write a finished shard. Raises MinferError naming the file when it cannot be written."""
        files = {self._output.suffix: shard.data} | ({".errors": shard.errors} if shard.errors else {})
        for end, data in files.items():
            self._write(shard.index, end, data)
        digests = {end: hashlib.sha256(data).hexdigest() for end, data in files.items()}
        self._write(shard.index, ".json", json_text({"counts": shard.counts, "sha256": digests}).encode())
        self.counts[shard.index] = shard.counts

    def total(self) -> dict[str, int]:
        """The counts of all shards."""
        keys = dict.fromkeys(key for counts in self.counts.values() for key in counts)
        return {key: sum(counts[key] for counts in self.counts.values()) for key in keys}

    def finish(self) -> dict[str, int]:
        """Join all shards under the target's name. Returns their counts. Raises MinferError naming a file."""
        files = {}
        bad = [self._path(i, ".errors") for i, counts in sorted(self.counts.items()) if counts["bad"]]
        if bad:
            with self._joined() as file:
                for path in bad:
                    file.write(path.read_bytes())
            files[errors_of(self._target).name] = self._place(errors_of(self._target))
        with self._joined() as file:
            shards = (self._path(i, self._output.suffix) for i in sorted(self.counts))
            self._output.join(shards, file, self._about)
        files[self._target.name] = sha256_of(self.folder / "joined")
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = {**self._about, "counts": self.total(), "files": files, "finished": finished}
        with written_whole(self.folder / "manifest") as file:
            file.write(json.dumps(manifest, indent=1).encode() + b"\n")
        self._place(manifest_of(self._target), "manifest")
        self._place(self._target)  # the last: where it is, all is
        return self.total()

    def _finished(self, index: int) -> dict[str, Any] | None:
        """The record of a shard whose files fit it."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            record = json.loads(self._path(index, ".json").read_bytes())
            if all(sha256_of(self._path(index, end)) == digest for end, digest in record["sha256"].items()):
                return record
        return None

    def _path(self, index: int, end: str) -> Path:
        return self.folder / f"{index:06}{end}"

    def _write(self, index: int, end: str, data: bytes) -> None:
        with written_whole(self._path(index, end)) as file:
            file.write(data)

    def _joined(self) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file that lies in the folder, which goes whatever happens, until it is whole."""
        return written_whole(self.folder / "joined")

    def _place(self, target: Path, name: str = "joined") -> str:
        """Give a file of the folder its name. Returns its sha256."""
        digest = sha256_of(self.folder / name)
        try:
            (self.folder / name).replace(target)
        except OSError as error:
            raise MinferError(f"{target}: cannot be written: {error.strerror or error}") from error
        return digest


@contextlib.contextmanager
def open_shards(
    target: Path, output: Output, about: Mapping[str, Any], n_blocks: int, resume: bool
) -> Iterator[Shards]:
    """The shards of a target, those of an earlier run among them, for one process at a time.

    about: what identifies the run. Raises ArgumentError when there are shards and no resume, when they are of another
    run (naming the difference), or files of names that the run will need; MinferError when another process writes them.
    """
    import filelock  # not before it is needed: it costs 10 ms

    folder, written = folder_of(target), folder_of(target) / "manifest.json"
    if folder.exists() and not (folder.is_dir() and resume):
        raise ArgumentError(f"{folder}: holds an unfinished run; resume it (resume, --resume), or remove the folder")
    if folder.exists() and not written.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ArgumentError(f"{folder}: holds files and no manifest of a run; remove it, or give another name")
    if not written.exists():
        for path in (errors_of(target), manifest_of(target)):
            if path.exists():
                raise ArgumentError(f"{path}: exists; remove it, or give another name")
    try:
        folder.mkdir(exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise MinferError(f"{folder}: another process is writing there; wait for it, or stop it") from error
    except OSError as error:
        raise MinferError(f"{folder}: cannot be written: {error.strerror or error}") from error
    try:
        if written.exists():
            check_same(read_manifest(written), about, written)
        else:
            with written_whole(written) as file:
                file.write(json_text(about).encode())
        shards = Shards(target, output, about, n_blocks)
        try:
            yield shards
        except BaseException:
            if not shards.counts:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        lock.release()
    shutil.rmtree(folder, ignore_errors=True)
