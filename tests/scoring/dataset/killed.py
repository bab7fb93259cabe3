"""Run as a script: kills a run at every single step that it takes on the disk, goes on from there, and compares.

A process that forks: the shards are made of the rows' own text, so that no device is ever used.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.job import plan
from minfer_jax.scoring.dataset.run import run
from minfer_jax.scoring.dataset.shards import Shard
from minfer_jax.scoring.results import Score
from minfer_jax.scoring.rows import Row

KILLED = 9
STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")


def score(source: Path, target: Path) -> None:
    job = plan(source, target, shard_rows=3)

    def engine(blocks: Sequence[Block], done: Callable[[int], object]) -> Iterator[Shard]:
        assert blocks  # Ray has no dataset without rows
        for block in blocks:
            rows = [Row(block.first + i, "text", ("",)) for i in range(block.n_rows)]
            good = [(row, Score(float(row.number), [], [], False)) for row in rows if row.number % 4]
            errors = b"".join(b'{"row": %d}\n' % row.number for row in rows if row.number % 4 == 0)
            zeros = dict.fromkeys(("tokens", "truncated", "merged", "empty"), 0)
            counts = {"rows": len(rows), "scored": len(good), "bad": len(rows) - len(good), **zeros}
            yield Shard(block.index, job.output.shard(good), errors, counts)

    run(job, {"name": "none"}, engine, resume=True, strict=False, progress=False)


def in_a_child(source: Path, target: Path, last: int) -> int:
    """Exit code of a process that scores and is killed in front of its step number ``last``."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps = 0

    def count(event: str, args: tuple) -> None:
        nonlocal steps
        if event in STEPS and str(target.parent) in str(args[0]):
            steps += 1
            if steps == last:
                os._exit(KILLED)

    sys.addaudithook(count)
    score(source, target)
    os._exit(0)


def outputs(folder: Path) -> dict[str, bytes]:
    """All files but those that hold the time."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if "manifest" not in path.name}


def main(folder: Path, suffix: str) -> None:
    source = folder / "rows.jsonl"
    source.write_text('{"text": "a"}\n' * 14)
    straight = folder / "straight"
    straight.mkdir()
    score(source, straight / f"scores{suffix}")
    for last in range(1, 1000):
        crashed = folder / f"killed{last}"
        crashed.mkdir()
        target = crashed / f"scores{suffix}"
        code = in_a_child(source, target, last)
        again = in_a_child(source, target, 0)
        assert again == 0, f"the run after a kill at step {last} ended with {again}"
        names = {path.name for path in crashed.iterdir()}
        assert names == {path.name for path in straight.iterdir()}, f"step {last} leaves {sorted(names)}"
        if suffix == ".jsonl":  # a Parquet file holds the time
            assert outputs(crashed) == outputs(straight), f"step {last}"
        shutil.rmtree(crashed)
        if code == 0:
            print(last - 1)
            return
        assert code == KILLED
    raise AssertionError("it never ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
