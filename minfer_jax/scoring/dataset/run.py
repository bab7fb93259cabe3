"""Scoring a file of rows into a file of results: any size, in order, and after a kill from where it stopped."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.records import FactRecord
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.block_scorer import BlockScorer
from minfer_jax.scoring.dataset.job import SHARD_ROWS, Job, plan
from minfer_jax.scoring.dataset.manifest import errors_of, finished_counts, folder_of, manifest_of
from minfer_jax.scoring.dataset.shards import Shard, open_shards
from minfer_jax.scoring.pairs import warn_of_merged
from minfer_jax.scoring.rows import Columns

log = logging.getLogger("minfer_jax")

_Item = TypeVar("_Item")

Engine = Callable[[Sequence[Block], Callable[[int], object]], Iterator[Shard]]
"""Makes the shards of blocks, at least one, in any order, and tells how many rows have been finished."""


@dataclass(frozen=True)
class DatasetScores(FactRecord):
    """What became of a dataset. file: the results; errors: bad rows, JSON lines with row, id and error, None without
    one; manifest: what was scored by what, as JSON.

    rows: of the input, of which ``scored`` have a result, ``bad`` have none. tokens: scored ones. truncated, merged,
    empty: rows whose scores say so (of choices, any). seconds: of this run, before which ``resumed`` rows were there.
    """

    file: str
    errors: str | None
    manifest: str
    rows: int
    scored: int
    bad: int
    tokens: int
    truncated: int
    merged: int
    empty: int
    seconds: float
    resumed: int


def score_dataset(
    model: Model,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    columns: Columns | None = None,
    resume: bool = False,
    strict: bool = False,
    shard_rows: int = SHARD_ROWS,
    parse_special: bool = False,
    progress: bool | None = None,
) -> DatasetScores:
    """Score every row of a file, whatever its size, into another: one result per row, in order.

    source: JSON lines, or Parquet if its name ends in .parquet (needs the extra ``parquet``). Its rows are all of one
        form: pairs, choices or texts, see :class:`Columns`, which names their fields. Results are those of ``score``,
        ``multiple_choice_batch`` and ``score_texts``.
    target: a name that ends in .jsonl or .parquet. Each result has ``row``, the number of its row in the source from 1
        (of JSON lines, the line), the row's id, and the fields of its Score, MultipleChoice or TextScore. Beside the
        target: ``TARGET.manifest.json`` with the model's identity, the source's sha256, the rules and the counts, and
        ``TARGET.errors.jsonl`` with the rows that cannot be scored and why, if there are some.
    resume: go on where an earlier run was stopped, by whatever; a finished one is left as it is. Until the target is
        whole, finished shards of ``shard_rows`` rows lie in ``TARGET.parts``; a run that dies loses the one it is at.
    strict: stop at a row that cannot be scored.
    parse_special, progress: as in ``score``.

    Raises ArgumentError (a file or a column that cannot be read, a source that changes, a target that exists, a resume
    with another model, source or option, naming it), UnsupportedError (no pyarrow), NumericsError, MinferError (the
    target cannot be written, or with strict a bad row).
    """
    if not isinstance(model, Model):
        raise ArgumentError(f"model is {model!r:.80}; give a Model, as load() gives it")
    job = plan(source, target, columns, shard_rows, parse_special)
    return run_here(model, job, resume, strict, progress)


def run_here(
    model: Model, job: Job, resume: bool = False, strict: bool = False, progress: bool | None = None
) -> DatasetScores:
    """Do the job in this process."""
    scorer = BlockScorer(model, job)

    def engine(blocks: Sequence[Block], done: Callable[[int], object]) -> Iterator[Shard]:
        for block, rows in zip(blocks, _ahead(map(scorer.encode, blocks)), strict=True):
            yield scorer.score(block, rows, done)

    return run(job, model.identity(), engine, resume, strict, progress)


def run(
    job: Job, identity: dict[str, Any], engine: Engine, resume: bool, strict: bool, progress: bool | None
) -> DatasetScores:
    """Let an engine make the shards that are not there yet; identity: of the model that it has."""
    about = {"model": identity, **job.about}
    began = time.monotonic()
    n_rows = job.about["source"]["rows"]
    counts = finished_counts(job.target, about, resume)
    if counts is not None:
        shutil.rmtree(folder_of(job.target), ignore_errors=True)  # it was to go when a run was killed
        _check_good(job, strict, counts)
        return _summary(job.target, counts, 0.0, n_rows)
    with open_shards(job.target, job.output, about, len(job.blocks), resume) as shards:
        resumed = shards.total().get("rows", 0)
        blocks = [block for block in job.blocks if block.index not in shards.counts]
        try:
            _check_good(job, strict, shards.total())
            with progress_bar("scoring", n_rows, "row", progress) as bar:
                bar.update(resumed)
                tokens = 0
                for shard in engine(blocks, bar.update) if blocks else ():  # a run can be killed when all are there
                    if strict and shard.errors:
                        first = json.loads(shard.errors.splitlines()[0])
                        raise MinferError(f"{job.source}: row {first['row']}: {first['error']}")
                    shards.keep(shard)
                    tokens += shard.counts["tokens"]
                    speed = f"{tokens / (time.monotonic() - began):,.0f} tokens/s"
                    bar.set_postfix_str(speed)
                    log.info("%d of %d rows, %s", shards.total()["rows"], n_rows, speed)
            counts = shards.finish()
        except BaseException:
            if kept := shards.total().get("rows", 0):
                log.warning("%d of %d rows are scored and kept in %s: resume from there", kept, n_rows, shards.folder)
            raise
    if counts["bad"]:
        log.warning("%d of %d rows could not be scored: %s", counts["bad"], n_rows, errors_of(job.target))
    warn_of_merged(counts["merged"], counts["scored"])
    return _summary(job.target, counts, time.monotonic() - began, resumed)


def _check_good(job: Job, strict: bool, counts: dict[str, int]) -> None:
    """Raise MinferError for bad rows that an earlier run has let pass, where none may be."""
    if strict and counts.get("bad"):
        raise MinferError(f"{job.source}: {counts['bad']} rows could not be scored in the run that is resumed")


def _summary(target: Path, counts: dict[str, int], seconds: float, resumed: int) -> DatasetScores:
    errors = str(errors_of(target)) if counts["bad"] else None
    return DatasetScores(str(target), errors, str(manifest_of(target)), **counts, seconds=seconds, resumed=resumed)


def _ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, each made by a thread while the caller has the one before: a GPU scores texts about as fast as one
    core reads them."""
    rest = iter(items)
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, rest, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, rest, end)
            yield item  # pyright: ignore[reportReturnType]
