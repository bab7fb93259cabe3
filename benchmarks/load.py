"""How long load() takes and how much memory it needs, for each known model and implementation.

Each case runs in a process of its own, three times over: a first load with the file in the page cache, then the best
of two more. "kept" is what the parameters hold; "over" is the peak beyond the process before loading, less what is
kept (the budget is 0.2 GB). "cpu" is the processor time of the best load, all threads together.

    python -m benchmarks.load
"""

import json
import resource
import subprocess
import sys
import time

import jax

import minfer_jax as mj
from benchmarks.record import write_record
from minfer_jax.hub import KNOWN_MODELS, resolve

CASES = (("dense", "float32"), ("dense", "bfloat16"), ("xla", "float32"), ("ffi", "float32"))


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(name: str, implementation: str, dtype: str) -> dict[str, float | str]:
    path = resolve(name)
    size = path.stat().st_size / 1e9
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)  # into the page cache
    jax.block_until_ready(jax.numpy.zeros(1))
    before, seconds, cpu = peak_gb(), [], []
    kept = over = 0.0
    for i in range(3):
        start, start_cpu = time.perf_counter(), time.process_time()
        model = mj.load(path, implementation=implementation, dtype=dtype)
        jax.block_until_ready(model.params)
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
        if i == 0:
            kept = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)) / 1e9
            over = peak_gb() - before - kept
        del model
    best = min(seconds[1:])
    return {
        "model": name,
        "implementation": implementation,
        "dtype": dtype if implementation == "dense" else "packed",
        "file_gb": round(size, 3),
        "kept_gb": round(kept, 3),
        "over_gb": round(over, 3),
        "first_s": round(seconds[0], 2),
        "best_s": round(best, 2),
        "cpu_s": round(min(cpu[1:]), 2),
        "gb_of_file_per_s": round(size / best, 2),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    rows = []
    for name in KNOWN_MODELS:
        for case in CASES:
            command = [sys.executable, "-m", "benchmarks.load", name, *case]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(rows[-1], flush=True)
    print(write_record("load_cpu", rows))


if __name__ == "__main__":
    main()
