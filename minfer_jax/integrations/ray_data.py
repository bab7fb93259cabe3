"""Dataset scoring on a Ray cluster, by Ray Data: an actor with the model on each device. Needs the extra ``ray``.

The driver, which this process is, plans the job, keeps finished shards and joins them, as without Ray: files, manifest
and the rules of a resume are the same. Model and source are read by the actors, from paths that every node has.
"""

import logging
import os
import pickle
import platform
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError, MinferError, UnsupportedError
from minfer_jax.load import load
from minfer_jax.scoring.dataset import SHARD_ROWS, DatasetScores, plan
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.block_scorer import BlockScorer
from minfer_jax.scoring.dataset.job import Job
from minfer_jax.scoring.dataset.manifest import check_same
from minfer_jax.scoring.dataset.run import run
from minfer_jax.scoring.dataset.shards import Shard
from minfer_jax.scoring.rows import Columns

try:
    import ray
    import ray.data
    from ray.exceptions import RayError
except ModuleNotFoundError as error:
    raise UnsupportedError("this engine needs Ray: pip install 'ray[data]'") from error

_ATTEMPTS = 3


def score_dataset(
    model: str | Path,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    workers: int | None = None,
    address: str | None = None,
    columns: Columns | None = None,
    resume: bool = False,
    strict: bool = False,
    shard_rows: int = SHARD_ROWS,
    parse_special: bool = False,
    progress: bool | None = None,
    **loading: Any,
) -> DatasetScores:
    """As ``minfer_jax.score_dataset``, by actors of a Ray cluster.

    model: what ``load`` takes, and loading its keyword arguments; every actor loads it. workers: actors; None: one for
    each GPU of the cluster, without GPUs one for each node. address: of the cluster, as ``ray.init`` takes it; None:
    the one that this process or RAY_ADDRESS knows, else one that is started here and ends with the call. All other
    arguments, files and errors: as there. An actor that dies is started again, and its shard is done again.

    Raises MinferError besides when there is no cluster, or actors do not have the same model and device.
    """
    job = replace(plan(source, target, columns, shard_rows, parse_special), source=Path(source).absolute())
    name = str(Path(model).absolute() if Path(model).exists() else model)
    with _cluster(address):
        pool = _pool(workers)
        identity = _identity(name, loading, pool)
        work = replace(job, blocks=()), name, loading, identity, _Attempts.remote()

        def engine(blocks: Sequence[Block], done: Callable[[int], object]) -> Iterator[Shard]:
            # A block of rows is a task of its own, so that its shard comes as soon as it is finished.
            items = ray.data.from_items([block._asdict() for block in blocks], override_num_blocks=len(blocks))
            actors = ray.data.ActorPoolStrategy(size=pool.workers)
            worker: Any = _Worker
            for row in items.map(worker, fn_constructor_args=work, compute=actors, **pool.each).iter_rows():
                shard = _opened(row["outcome"])
                done(shard.counts["rows"])
                yield shard

        return run(job, identity, engine, resume, strict, progress)


@ray.remote(num_cpus=0)
class _Attempts:
    """Counts how often each block is begun: what kills its actor every time would go on for ever."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, index: int) -> int:
        self._counts[index] += 1
        return self._counts[index]


class _Worker:
    """An actor: the model, and the blocks of rows that it is given. An error of ours is an outcome like a shard, which
    the driver raises; Ray would wrap it."""

    def __init__(self, job: Job, name: str, loading: dict[str, Any], identity: dict[str, Any], attempts: Any) -> None:
        self._work, self._attempts = (job, name, loading, identity), attempts
        self._scorer: BlockScorer | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        block = Block(**row)
        try:
            attempt: Any = ray.get(self._attempts.begin.remote(block.index))
            if attempt > _ATTEMPTS:
                last = block.first + block.n_rows - 1
                raise MinferError(f"the rows {block.first} to {last} ended their actor {_ATTEMPTS} times")
            self._scorer = self._scorer or self._load(*self._work)
            outcome = self._scorer.score(block, self._scorer.encode(block))
        except MinferError as error:
            outcome = str(error)
        return {"outcome": pickle.dumps(outcome)}

    @staticmethod
    def _load(job: Job, name: str, loading: dict[str, Any], identity: dict[str, Any]) -> BlockScorer:
        model = load(name, **loading)
        check_same(identity, model.identity(), Path(f"the model on {platform.node()}"))
        return BlockScorer(model, job)


def _opened(outcome: bytes) -> Any:
    """What an actor or a task gives. Raises MinferError when that is an error."""
    value = pickle.loads(outcome)
    if isinstance(value, str):
        raise MinferError(value)
    return value


@dataclass(frozen=True)
class _Pool:
    """workers: actors. each: what one of them takes of the cluster."""

    workers: int
    each: dict[str, Any]


def _pool(workers: int | None) -> _Pool:
    """Actors on GPUs if there are, else on the CPUs of nodes, as many on each as fit."""
    if workers is not None:
        workers = check_integer("workers", workers, 1)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    n_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    most = n_gpus or sum(cpus)
    if workers is not None and workers > most:
        raise ArgumentError(f"workers is {workers}; the cluster has {most} {'GPUs' if n_gpus else 'CPUs'}")
    if n_gpus:
        return _Pool(workers or n_gpus, {"num_gpus": 1, "num_cpus": 1})
    workers = workers or sum(n > 0 for n in cpus)
    each = next(n for n in range(max(cpus), 0, -1) if sum(have // n for have in cpus) >= workers)
    return _Pool(workers, {"num_cpus": each})


def _identity(name: str, loading: dict[str, Any], pool: _Pool) -> dict[str, Any]:
    """Of the model as an actor has it: the driver's machine may have no GPU, or no model."""

    @ray.remote(**pool.each)
    def ask() -> bytes:
        try:
            return pickle.dumps(load(name, **loading).identity())
        except MinferError as error:
            return pickle.dumps(str(error))

    return _opened(ray.get(ask.remote()))


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    """A connection to the cluster, ours or an earlier one, without Ray's own bars and lines."""
    own = not ray.is_initialized()
    if own:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it calls a standing fact of Ray Data's an error
        try:
            _check_reachable(address or os.environ.get("RAY_ADDRESS", ""))
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            raise MinferError(f"no Ray cluster at {address or 'this machine'}: {str(error).splitlines()[0]}") from error
    context, logger = ray.data.DataContext.get_current(), logging.getLogger("ray.data")
    bars, level = context.enable_progress_bars, logger.level
    context.enable_progress_bars = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    except RayError as error:
        raise MinferError(f"Ray gave up: {str(error).splitlines()[0]}; resume when the cluster is well") from error
    finally:
        context.enable_progress_bars = bars
        logger.setLevel(level)
        if own:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError when nobody answers at a host and port: Ray asks again for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()
