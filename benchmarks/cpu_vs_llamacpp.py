"""This package beside llama.cpp on a CPU: the same files, the same number of threads, in turns.

Each side is a process of its own, bound to as many processors as there are threads; while one works the other waits.
Of every quantity the best of the rounds counts, after one that does not (which also fills the compile cache); all
samples are in the JSON.

    python -m benchmarks.cpu_vs_llamacpp [--peer-python PATH] [model ...]

A model is a path or a known name; "@q4_0" behind it requantises the file first. llama-cpp-python has to be importable
in the peer's interpreter.

tg: greedy decoding from an empty cache. pp: a prompt, logits of its last token. Scoring: 50 questions of 4 choices, a
request each; llama-cpp-python evaluates one at a time with all logits, and in a pass of its own keeps the tokens that
a request shares with the one before.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from benchmarks.cpu_sides import TICKS, Logprobs, Pairs, Worker
from benchmarks.interleaved import interleaved
from benchmarks.record import write_record
from benchmarks.requantise import q4_0
from benchmarks.scoring_work import ordinary_words
from minfer_jax.hub import resolve

SIDES = OURS, PEER = "minfer-jax", "llama.cpp"
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b@q4_0")
LOADING = ("implementation", "dtype", "precision")
STEPS = ("imports", "load", "first_token")
N_DECODE, N_PROMPTS = 128, (128, 512)


def questions() -> Pairs:
    """200 (context, continuation): 50 contexts of about 30 to 110 tokens, each with what follows and three others."""
    words = ordinary_words()
    rng = random.Random(0)
    pairs = []
    for i in range(50):
        begin = i * (len(words) - 100) // 50
        end = begin + rng.randint(25, 80)
        for choice in (end, *(rng.randrange(len(words) - 4) for _ in range(3))):
            continuation = words[choice : choice + rng.randint(1, 4)]
            pairs.append((" ".join(words[begin:end]), " " + " ".join(continuation)))
    return pairs


def bandwidth(threads: int) -> dict[str, float]:
    """GB/s of reading 512 MB and of copying 256 MB (read and written): best of some rounds, shared by all threads."""
    parts = [np.ones((1 << 26) // threads, np.int64) for _ in range(threads)]
    work = {"read": np.max, "copy": lambda x: np.copyto(x[: len(x) // 2], x[-(len(x) // 2) :])}
    with ThreadPoolExecutor(threads) as pool:
        runs = {name: partial(lambda f: list(pool.map(f, parts)), f) for name, f in work.items()}
        seconds = interleaved(runs, 10)
    return {name: sum(part.nbytes for part in parts) / min(values) / 1e9 for name, values in seconds.items()}


def processor_clocks() -> np.ndarray:
    """Seconds that pass, those that our processors were busy (or taken away by a hypervisor), and those of them that
    went to this process and its workers that have ended."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = 0
    for name, *ticks in map(str.split, Path("/proc/stat").read_text().splitlines()):
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq + stolen
    return np.array([time.perf_counter(), busy / TICKS, sum(os.times()[:4])])


def elsewhere_share(since: np.ndarray) -> float:
    """How much of one processor other processes have used since then. llama.cpp's threads wait for each other at every
    operation, so that it is slowed down out of all proportion by what shares its processors."""
    seconds, busy, own = processor_clocks() - since
    return round((busy - own) / seconds, 3)


def weights_of_token(path: Path) -> int:
    """Bytes that a token reads as the file has them: all, less an embedding that is not the head."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    return sum(sizes.values()) - ("output.weight" in sizes) * sizes["token_embd.weight"]


def agreement(ours: Logprobs, theirs: Logprobs) -> dict[str, float]:
    """Difference of single log-probabilities, in nats."""
    if [ids for ids, _ in ours] != [ids for ids, _ in theirs]:
        sys.exit("the two sides split the texts into different tokens: nothing to compare")
    difference = np.abs(np.concatenate([np.subtract(a[1], b[1]) for a, b in zip(ours, theirs, strict=True)]))
    return {"tokens": len(difference), "mean": float(difference.mean()), "max": float(difference.max())}


class Comparison:
    """Of one file. result: for the record; its rows are printed as they come."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        self._path = path
        self._pythons = {OURS: sys.executable, PEER: args.peer_python}
        self._options = {
            OURS: {key: value for key in LOADING if (value := getattr(args, key))},
            PEER: {"n_threads": args.threads, "n_threads_batch": args.threads, "flash_attn": args.flash_attention},
        }
        self.result: dict[str, Any] = {"file": path.name, "options": self._options, "rows": []}
        print(f"{'':36}{OURS:>12}{PEER:>12}{'ratio':>8}")

    def start_up(self, rounds: int) -> None:
        """From the start of a process to the imports, from there to a usable model, from there to a token."""
        seconds: dict[str, dict[str, list[float]]] = {step: defaultdict(list) for step in STEPS}
        for _ in range(1 + rounds):
            for side in SIDES:
                with Worker(side, self._pythons[side]) as worker:
                    for step in STEPS:
                        began = time.perf_counter()
                        worker.ask(step, *((str(self._path), self._options[side]) if step == "load" else ()))
                        seconds[step][side].append(time.perf_counter() - began)
        for step, samples in seconds.items():
            counted = {side: values[1:] for side, values in samples.items()}
            self._row(step.replace("_", " "), "s", min(counted[OURS]), min(counted[PEER]), seconds=counted)

    def generation(self, rounds: int, read_bandwidth: float) -> None:
        with self._workers() as (ours, peer):
            decode = self._in_turns(f"tg{N_DECODE}", N_DECODE, ("decode", N_DECODE), ours, peer, rounds)
            for n in N_PROMPTS:
                self._in_turns(f"pp{n}", n, ("prefill", n), ours, peer, rounds)
            self.result["idle_share"] = {OURS: ours.idle_share(), PEER: peer.idle_share()}
            self._memory("generating", ours, peer)
        weights = weights_of_token(self._path)
        self._row("tg, bytes of weights", "GB/s", *(weights * rate / 1e9 for rate in decode))
        self.result["read_share"] = [round(weights * rate / 1e9 / read_bandwidth, 3) for rate in decode]

    def scoring(self, rounds: int) -> None:
        pairs = questions()
        answers: dict[str, Logprobs] = {}

        def work(name: str, worker: Worker, reuse: bool) -> None:
            answers[name] = worker.ask("score", pairs, reuse)

        with self._workers(logits_all=True) as (ours, peer):
            runs = {
                OURS: partial(work, OURS, ours, False),
                PEER: partial(work, PEER, peer, False),
                "prefixes kept": partial(work, "prefixes kept", peer, True),
            }
            seconds = interleaved(runs, rounds)
            rates = {name: len(pairs) / min(values) for name, values in seconds.items()}
            self._row("scoring", "req/s", rates[OURS], rates[PEER], seconds=seconds)
            self._row("scoring, peer keeps prefixes", "req/s", rates[OURS], rates["prefixes kept"])
            self._memory("scoring", ours, peer)
        self.result["logprob_difference"] = {
            name: agreement(answers[OURS], answers[name]) for name in (PEER, "prefixes kept")
        }

    @contextmanager
    def _workers(self, **peer_options: Any) -> Iterator[tuple[Worker, Worker]]:
        """Both sides with the model loaded."""
        with Worker(OURS, self._pythons[OURS]) as ours, Worker(PEER, self._pythons[PEER]) as peer:
            self.result["provenance"] = ours.ask("load", str(self._path), self._options[OURS])
            peer.ask("load", str(self._path), self._options[PEER] | peer_options)
            yield ours, peer

    def _in_turns(
        self, quantity: str, tokens: int, request: tuple, ours: Worker, peer: Worker, rounds: int
    ) -> tuple[float, float]:
        """Tokens per second of both sides."""
        seconds = interleaved({OURS: partial(ours.ask, *request), PEER: partial(peer.ask, *request)}, rounds)
        rates = tokens / min(seconds[OURS]), tokens / min(seconds[PEER])
        self._row(quantity, "tok/s", *rates, seconds=seconds)
        return rates

    def _memory(self, doing: str, ours: Worker, peer: Worker) -> None:
        self._row(f"peak memory, {doing}", "MB", ours.peak() / 1e6, peer.peak() / 1e6)
        self._row("  without pages of files", "MB", ours.peak_anon / 1e6, peer.peak_anon / 1e6)

    def _row(self, quantity: str, unit: str, ours: float, peer: float, **more: Any) -> None:
        row = {"quantity": quantity.strip(), "unit": unit, OURS: round(ours, 4), PEER: round(peer, 4)}
        self.result["rows"].append({**row, "ratio": round(ours / peer, 3), **more})
        print(f"{quantity:28}{unit:>8}{ours:12.4g}{peer:12.4g}{ours / peer:8.2f}", flush=True)


def compare(path: Path, args: argparse.Namespace, read_bandwidth: float) -> dict[str, Any]:
    comparison, clocks = Comparison(path, args), processor_clocks()
    comparison.start_up(args.rounds)
    comparison.generation(args.rounds, read_bandwidth)
    comparison.scoring(args.scoring_rounds)
    result = comparison.result
    elsewhere = result["elsewhere_share"] = elsewhere_share(clocks)
    difference = result["logprob_difference"][PEER]
    print(f"|difference| of {difference['tokens']} log-probabilities: mean {difference['mean']:.4f}", end=", ")
    print(f"largest {difference['max']:.4f}")
    shares = ", ".join(f"{side} while idle {share:.1%}" for side, share in result["idle_share"].items())
    print(f"of one processor: {shares}, other processes {elsewhere:.1%}")
    return result


def peer_version(python: str) -> str:
    command = [python, "-c", "import llama_cpp; print(llama_cpp.__version__)"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"{python} cannot import llama_cpp: pip install llama-cpp-python there, or give --peer-python PATH")


def main() -> None:
    parser = argparse.ArgumentParser(description="This package beside llama.cpp on a CPU, in turns.")
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="path or known name [@q4_0]")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH", help="where llama_cpp is importable")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="that count (default: %(default)s)")
    parser.add_argument("--scoring-rounds", type=int, default=2, metavar="N", help="(default: %(default)s)")
    flash = {"action": argparse.BooleanOptionalAction, "default": True}
    parser.add_argument("--flash-attention", **flash, help="in llama.cpp, where it is the faster way")
    for option in LOADING:
        parser.add_argument(f"--{option}", metavar="NAME", help="argument of load()")
    args = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))
    if not 1 <= args.threads <= len(processors):
        parser.error(f"--threads is {args.threads}; there are {len(processors)} processors")
    os.sched_setaffinity(0, processors[: args.threads])  # the workers' too, and XLA makes as many threads

    results: dict[str, Any] = {"llama-cpp-python": peer_version(args.peer_python), "threads": args.threads}
    clocks = processor_clocks()
    results["gb_per_s"] = memory = bandwidth(args.threads)
    if (elsewhere := elsewhere_share(clocks)) > 0.1:
        print(f"other processes use {elsewhere:.0%} of one processor: no figure of this run can be trusted")
    print(f"memory, {args.threads} threads: " + ", ".join(f"{name} {rate:.1f} GB/s" for name, rate in memory.items()))
    results["models"] = {}
    for name in args.models:
        plain = name.removesuffix("@q4_0")
        path = resolve(plain).resolve()
        path = path if name == plain else q4_0(path)
        print(f"\n{name}, {path.stat().st_size / 1e6:.0f} MB; best of the rounds, ratio {OURS} / {PEER}")
        results["models"][name] = compare(path, args, memory["read"])
        partial = tuple(results["models"]) != MODELS
        record = write_record("cpu_vs_llamacpp", results, partial)  # each, in case the next one dies
    print(f"\n{record}")


if __name__ == "__main__":
    main()
