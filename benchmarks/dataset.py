"""Memory that scoring a large file takes above the model, and how fast rows go through with a model of almost no work.

    python -m benchmarks.dataset [--rows 1000000] [--suffix .parquet]

Rows are pairs of some ten tokens, with another column of 400 characters that is not read, in one row group. The model
is a tiny one of the tests: what is measured is the way of the rows, from file to file.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import threading
import time
from pathlib import Path

import minfer_jax as mj
from benchmarks.record import write_record
from tests.tiny import CASES, write_tiny

WORDS = "the a in end inner it he she of to and".split()
ROWS = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of scoring a large file.")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--suffix", choices=(".parquet", ".jsonl"), default=".parquet")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / f"rows{args.suffix}"
        in_another_process(source, args.rows)
        write_tiny(CASES["llama"], folder / "tiny.gguf")
        model = mj.load(folder / "tiny.gguf")
        mj.score(model, [("in the", " end")] * 2000)  # what compiling takes is not the rows'
        before = resident_mb()
        began = time.perf_counter()
        with Watch() as watch:
            done = mj.score_dataset(model, source, folder / f"scores{args.suffix}")
        seconds = time.perf_counter() - began
        results = {
            "rows": done.rows,
            "scored": done.scored,
            "source_mb": round(source.stat().st_size / 1e6),
            "format": args.suffix,
            "memory_before_mb": round(before),
            "memory_above_mb": round(watch.most - before),
            "rows_per_s": round(done.rows / seconds),
        }
    print(json.dumps(results, indent=1))
    print(write_record("dataset_cpu", results, args.rows != ROWS))


def in_another_process(source: Path, n_rows: int) -> None:
    """Write the rows where the memory that it takes does not count."""
    process = multiprocessing.get_context("spawn").Process(target=write_rows, args=(source, n_rows))
    process.start()
    process.join()


def write_rows(source: Path, n_rows: int) -> None:
    rng = random.Random(1)
    contexts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 12))) for _ in range(n_rows)]
    continuations = [" " + rng.choice(WORDS) for _ in range(n_rows)]
    if source.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        rest = [f"{i:400}" for i in range(n_rows)]
        columns = {"id": range(n_rows), "context": contexts, "continuation": continuations, "rest": rest}
        pq.write_table(pa.table(columns), source, row_group_size=n_rows)
        return
    with source.open("w") as file:
        for i, pair in enumerate(zip(contexts, continuations, strict=True)):
            file.write(json.dumps({"id": i, "context": pair[0], "continuation": pair[1], "rest": f"{i:400}"}) + "\n")


def resident_mb() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1e3


class Watch:
    """The most resident memory while it is open, in MB."""

    def __enter__(self) -> "Watch":
        self.most, self._open = resident_mb(), True
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while self._open:
            self.most = max(self.most, resident_mb())
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._thread.join()


if __name__ == "__main__":
    main()
