"""How many programs a thousand texts of random lengths need, in a first process and in the next.

    python -m benchmarks.recompiles [TEXTS]

Each process loads SmolLM2 and scores every token of TEXTS (1,000) texts of 1 to 512 tokens. start_s: from the start of
the process until the first program runs. padding: share of token slots that held no token.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import numpy as np

import minfer_jax as mj
from benchmarks.record import write_record
from minfer_jax.hub import resolve
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.buckets import Batch, pack_sequences


def measure(path: str, texts: int, began: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 513, texts)
    runtime = Runtime(mj.load(path))
    pairs = [([0], rng.integers(1000, 40000, n).tolist()) for n in lengths]

    started = []
    score = Runtime.score

    def noting(self: Runtime, batch: Batch):
        call = score(self, batch)
        started.append(time.time())
        return call

    Runtime.score = noting
    mj.score_tokens(runtime, pairs, progress=False)
    finished = time.time()
    runtime.settle()
    info = runtime.cache_info()
    batches = pack_sequences([[*a, *b] for a, b in pairs], lengths.tolist())
    return {
        "start_s": round(started[0] - began, 2),
        "scoring_s": round(finished - started[0], 1),
        "programs": len(info.programs),
        "compiles": info.compiles,
        "disk_hits": info.disk_hits,
        "padding": round(1 - int(lengths.sum()) / sum(batch.bucket.slots for batch in batches), 4),
    }


def main() -> None:
    if len(sys.argv) == 4:
        path, texts, began = sys.argv[1:]
        print(json.dumps(measure(path, int(texts), float(began))))
        return
    texts = sys.argv[1] if len(sys.argv) > 1 else "1000"
    path = str(resolve("smollm2-135m"))
    results: dict[str, Any] = {"texts": int(texts)}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"MINFER_CACHE_DIR": folder}
        for process in ("first", "second"):
            command = [sys.executable, "-m", "benchmarks.recompiles", path, texts, str(time.time())]
            out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[process] = json.loads(out)
            print(process, results[process], flush=True)
    print(write_record(f"recompiles_{jax.default_backend()}", results))


if __name__ == "__main__":
    main()
