"""Scoring by this package beside llama-cpp-python and the ``hf`` model of lm-evaluation-harness (transformers on the
file's weights in float32), on a CPU, the same number of threads, in turns; or by this package alone on a GPU.

    python -m benchmarks.scoring [--llama-python PATH] [--hf-python PATH] [--seconds S] [--texts N] [model ...]
    python -m benchmarks.scoring --device gpu [size:mix ...]

choices: 500 questions of four choices behind one few-shot header, as 2,000 (context, continuation). texts: the
log-probability of every token of 2,000 texts. Tokens are those of the texts as asked, shared or not.

On a CPU each side is a process of its own; while one works the others wait. A peer's rate is that of a sample, the
first of the questions or texts, as many as take it ``--seconds``; this package scores what llama.cpp scores in each
round, and at the end the whole set once (what is compiled for that is in the time, and stated). Rates are medians of
the rounds, after a small run that is not counted and whose numbers are compared. llama.cpp scores a request at a time
with all logits, in a pass of its own with the tokens kept that a request shares with the one before; hf scores by
``loglikelihood`` and ``loglikelihood_rolling``, as the harness asks it.

On a GPU the weights are random, so texts are token ids, and every run is one of the whole set.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import scoring_work as work
from benchmarks.cpu_sides import Worker
from benchmarks.cpu_vs_llamacpp import agreement, elsewhere_share, peer_version, processor_clocks
from benchmarks.interleaved import interleaved
from benchmarks.random_gguf import write
from benchmarks.record import write_record
from minfer_jax.hub import resolve

OURS, HARNESS = "minfer-jax", "minfer-jax in lm_eval"
LLAMA, KEPT, HF = "llama.cpp", "llama.cpp, prefixes kept", "lm_eval hf"
QUESTIONS = 500
TEXTS = {"smollm2-135m": 2000, "qwen2.5-coder-0.5b": 1000}
"""On a CPU, by model: a thousand texts of the larger one take six minutes, and make no other batches than two."""
GOALS = {
    ("choices", OURS, LLAMA): 10,
    ("texts", OURS, LLAMA): 3,
    ("choices", HARNESS, HF): 2,
    ("texts", OURS, HF): 2,
}
"""How many times as fast, at least."""
LIMITS = {LLAMA: 0.2, HF: 0.1}
"""Mean difference in nats beyond which the sides do not do the same: of a token, and of an answer of the harness."""

GPU_MODELS = ("qwen2.5-0.5b:q4_0", "qwen2.5-7b:q4_k_m")
GPU_TEXTS = 2000
GRID = 32, 512
TRANSFORMERS = {"qwen2.5-0.5b:q4_0": 250_000, "qwen2.5-7b:q4_k_m": 36_100}
"""Tokens per second at GRID, transformers in bfloat16 with log-probabilities on the device: measured before, on an
H200."""

_FEW = 2  # of items at least: with a single one, llama.cpp would keep all of it from the pass before

Ask = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True)
class Job:
    """What is scored. tokens: of each item. answers: per item, of those that every side gives in one list. whole: the
    sides that score the whole set, too."""

    name: str
    items: Sequence[Any]
    tokens: Sequence[int]
    answers: int
    sides: dict[str, Ask]
    whole: tuple[str, ...]

    def rates(self, n: int, seconds: float) -> dict[str, float]:
        return {"req/s": n * self.answers / seconds, "tok/s": sum(self.tokens[:n]) / seconds}


def pairs(questions: Sequence[Any]) -> list[tuple[str, str]]:
    return [(context, choice) for context, choices in questions for choice in choices]


def jobs(n_questions: int, n_texts: int, ours: Worker, llama: Worker, hf: Worker) -> list[Job]:
    def asking(worker: Worker, *method: str, form: Callable[[Sequence[Any]], Any] = list, reuse: bool = False) -> Ask:
        return lambda items: worker.ask(*method, form(items), *([True] if reuse else []))

    def alone(texts: Sequence[str]) -> list[tuple[str]]:
        return [(text,) for text in texts]

    questions, texts = work.questions(n_questions), work.texts(n_texts)
    lengths = ours.ask("lengths", [context + choice for context, choice in pairs(questions)])
    of_questions = np.reshape(lengths, (n_questions, work.CHOICES)).sum(-1).tolist()
    sides = {
        OURS: asking(ours, "choices"),
        HARNESS: asking(ours, "in_harness", "loglikelihood", form=pairs),
        LLAMA: asking(llama, "score", form=pairs),
        KEPT: asking(llama, "score", form=pairs, reuse=True),
        HF: asking(hf, "in_harness", "loglikelihood", form=pairs),
    }
    choices = Job("choices", questions, of_questions, work.CHOICES, sides, (OURS, HARNESS))
    sides = {
        OURS: asking(ours, "texts"),
        HARNESS: asking(ours, "in_harness", "loglikelihood_rolling", form=alone),
        LLAMA: asking(llama, "texts"),
        HF: asking(hf, "in_harness", "loglikelihood_rolling", form=alone),
    }
    return [choices, Job("texts", texts, ours.ask("lengths", texts), 1, sides, (OURS,))]


class Measurement:
    """Of one job. Samples are chosen when it is made; ``round`` after ``round`` gives the rates, ``whole`` ours of the
    whole set, and ``result`` goes into the record."""

    def __init__(self, job: Job, seconds: float, compiled: Callable[[], float]) -> None:
        self._job, self._compiled = job, compiled
        few = job.items[: max(_FEW, 4 // job.answers)]
        answers, took = {}, {}
        for side, ask in job.sides.items():
            began = time.perf_counter()
            answers[side] = ask(few)
            took[side] = time.perf_counter() - began
        self.differences = _differences(answers)
        sizes = {side: min(len(job.items), max(_FEW, int(seconds * len(few) / t))) for side, t in took.items()}
        self._sizes = sizes | {side: sizes[LLAMA] for side in (OURS, HARNESS)}
        for side in (OURS, HARNESS):  # compiles what the sample needs
            job.sides[side](job.items[: sizes[LLAMA]])
        self._seconds: dict[str, list[float]] = {side: [] for side in job.sides}
        self._answers = answers
        self._whole: dict[str, dict[str, Any]] = {}

    def round(self) -> None:
        for side, n in self._sizes.items():
            began = time.perf_counter()
            self._answers[side] = self._job.sides[side](self._job.items[:n])
            self._seconds[side].append(time.perf_counter() - began)

    def whole(self) -> None:
        """Once; and whether its numbers are those of the sample, bit for bit."""
        n = len(self._job.items)
        for side in self._job.whole:
            compiled, began = self._compiled(), time.perf_counter()
            answers = self._job.sides[side](self._job.items)
            seconds = time.perf_counter() - began
            same = answers[: len(self._answers[side])] == self._answers[side]
            rates = {unit: round(rate, 3) for unit, rate in self._job.rates(n, seconds).items()}
            compiled = round(self._compiled() - compiled, 2)
            self._whole[side] = {**rates, "seconds": seconds, "compile_seconds": compiled, "same_as_sample": same}

    def rate(self, side: str, unit: str) -> float:
        """Of the whole set where that was measured, else of the sample."""
        return self._whole[side][unit] if side in self._whole else self._sample(side, unit)

    def _rates(self, side: str, unit: str) -> list[float]:
        """Of the sample, by round."""
        return [self._job.rates(self._sizes[side], seconds)[unit] for seconds in self._seconds[side]]

    def _sample(self, side: str, unit: str) -> float:
        return median(self._rates(side, unit))

    def _ratio(self, ours: str, side: str) -> float:
        """How many times as fast we are within a round, in tokens."""
        rounds = zip(self._rates(ours, "tok/s"), self._rates(side, "tok/s"), strict=True)
        return median(a / b for a, b in rounds)

    def result(self) -> dict[str, Any]:
        self.differences = _differences(self._answers)
        rows = {
            side: {
                "sample": n,
                "req/s": round(self._sample(side, "req/s"), 3),
                "tok/s": round(self._sample(side, "tok/s"), 1),
                "seconds": self._seconds[side],
                "times_as_fast_in_a_round": round(self._ratio(HARNESS if side == HF else OURS, side), 3),
            }
            for side, n in self._sizes.items()
        }
        job = self._job
        sizes = {"items": len(job.items), "requests": len(job.items) * job.answers, "tokens": sum(job.tokens)}
        return {**sizes, "samples": rows, "whole": self._whole, "logprob_difference": self.differences}

    def show(self) -> None:
        print(f"\n{self._job.name}: {len(self._job.items)} items, {sum(self._job.tokens):,} tokens")
        print(f"{'':26}{'sample':>8}{'req/s':>10}{'tok/s':>10}{'ours: whole':>13}{'sample':>8}  times as fast")
        for side, n in self._sizes.items():
            ours = HARNESS if side == HF else OURS
            requests, tokens = (self._sample(side, unit) for unit in ("req/s", "tok/s"))
            whole = self._whole[ours if ours in self._whole else OURS]["tok/s"] / tokens
            print(f"{side:26}{n:8}{requests:10.2f}{tokens:10.0f}{whole:13.2f}{self._ratio(ours, side):8.2f}")
        for side, whole in self._whole.items():
            same = "the same numbers" if whole["same_as_sample"] else "OTHER NUMBERS"
            print(f"  whole set, {side}: {whole['req/s']:.2f} req/s, {whole['tok/s']:.0f} tok/s, {same}")
        for side, difference in self.differences.items():
            print("  |difference|, " + side + ": " + ", ".join(f"{k} {v:.4g}" for k, v in difference.items()))


def _differences(answers: dict[str, list[Any]]) -> dict[str, dict[str, float]]:
    """Of llama.cpp's tokens from ours, and of hf's answers from ours in the harness, of those that both gave."""
    found = {}
    for side in (LLAMA, KEPT):
        if side in answers:
            n = min(len(answers[OURS]), len(answers[side]))
            found[side] = agreement(*([(ids, values) for ids, values in answers[s][:n]] for s in (OURS, side)))
    n = min(len(answers[HARNESS]), len(answers[HF]))
    both = [[a if isinstance(a, list) else [a, True] for a in answers[side][:n]] for side in (HARNESS, HF)]
    sums, greedy = (np.array([[a[i] for a in of_side] for of_side in both]) for i in (0, 1))
    apart = np.abs(sums[0] - sums[1])
    found[HF] = {"answers": n, "mean": float(apart.mean()), "max": float(apart.max())}
    if isinstance(answers[HF][0], list):
        found[HF]["other_greedy_flags"] = int((greedy[0] != greedy[1]).sum())
    for side, difference in found.items():
        if not difference["mean"] <= LIMITS[HF if side == HF else LLAMA]:
            sys.exit(f"{side} gives other numbers ({difference}): it does not do the same, so nothing is compared")
    return found


def on_cpu(name: str, args: argparse.Namespace) -> dict[str, Any]:
    path = resolve(name).resolve()
    print(f"\n{name}, {path.stat().st_size / 1e6:.0f} MB", flush=True)
    llama_options = {"n_threads": args.threads, "n_threads_batch": args.threads, "flash_attn": True, "logits_all": True}
    hf_options = {"batch_size": args.hf_batch}
    n_texts = args.texts or TEXTS.get(name, TEXTS["smollm2-135m"])
    clocks = processor_clocks()
    with (
        Worker("minfer-jax", sys.executable) as ours,
        Worker("llama.cpp", args.llama_python) as llama,
        Worker("hf", args.hf_python) as hf,
    ):
        provenance = ours.ask("load", str(path), {})
        llama.ask("load", str(path), llama_options)
        versions = hf.ask("load", str(path), hf_options)
        compiled = partial(ours.ask, "compile_seconds")
        of_jobs = jobs(args.questions, n_texts, ours, llama, hf)
        measured = {job.name: Measurement(job, args.seconds, compiled) for job in of_jobs}
        for _ in range(args.rounds):
            for measurement in measured.values():
                measurement.round()
        results = {"provenance": provenance, "llama_options": llama_options, "hf": versions | hf_options}
        for job, measurement in measured.items():
            measurement.whole()
            results[job] = measurement.result()
            measurement.show()
    results["goals"] = {}
    for (job, side, peer), least in GOALS.items():
        ratio = measured[job].rate(side, "tok/s") / measured[job].rate(peer, "tok/s")
        results["goals"][f"{job}: {side} / {peer}"] = {"ratio": round(ratio, 3), "goal": least}
        print(f"{job}: {side} / {peer} {ratio:.2f}, goal {least}: {'reached' if ratio >= least else 'MISSED'}")
    elsewhere = results["elsewhere_share"] = elsewhere_share(clocks)
    busy = ": no figure of this run can be trusted" if elsewhere > 0.1 else ""
    print(f"of one processor, other processes used {elsewhere:.1%}{busy}", flush=True)
    return results


def on_gpu(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rates of this package on random weights, the best of the rounds after one that compiles."""
    import minfer_jax as mj
    from minfer_jax.profiling.workload import score

    print(f"\n{name}", flush=True)
    size, mix = name.split(":")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"random-{size}-{mix}.gguf"
        write(path, size, mix, context=8192)
        runtime = mj.Runtime(mj.load(path, n_ctx=8192), promotion="off")
        result: dict[str, Any] = {"provenance": runtime.provenance}
        vocab = runtime.config.vocab_size
        sets = {
            "choices": work.question_ids(args.questions, vocab),
            "texts": work.text_ids(args.texts or GPU_TEXTS, vocab),
        }
        runs = {job: (lambda ids=ids: mj.score_tokens(runtime, ids, progress=False)) for job, ids in sets.items()}
        rows, length = args.grid
        grid = f"{rows} x {length}"
        seconds = interleaved({**runs, grid: lambda: score(runtime, rows, length)}, args.rounds)
    sizes = {job: (len(ids), sum(len(a) + len(b) for a, b in ids)) for job, ids in sets.items()}
    for job, (requests, tokens) in {**sizes, grid: (rows, rows * length)}.items():
        best = min(seconds[job])
        result[job] = {"requests": requests, "tokens": tokens, "req/s": requests / best, "tok/s": tokens / best}
        result[job]["seconds"] = seconds[job]
        print(f"{job:12}{requests / best:12,.1f} req/s{tokens / best:12,.0f} tok/s", end="")
        if (peer := TRANSFORMERS.get(name)) and job == grid and tuple(args.grid) == GRID:
            result[job]["transformers_bfloat16_measured_before"] = peer
            print(f"   transformers in bfloat16, measured before: {peer:,}, ratio {tokens / best / peer:.2f}", end="")
        print(flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Scoring beside llama-cpp-python and lm-evaluation-harness's hf.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="path or known name; on a GPU size:mix")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--llama-python", default=sys.executable, metavar="PATH", help="where llama_cpp is importable")
    parser.add_argument("--hf-python", default=sys.executable, metavar="PATH", help="where lm_eval and torch are")
    parser.add_argument("--hf-batch", type=int, default=1, metavar="N", help="batch_size of hf (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=12, metavar="S", help="of a sample (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=QUESTIONS, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--texts", type=int, metavar="N", help=f"default: {GPU_TEXTS}, and by model on a CPU {TEXTS}")
    parser.add_argument("--grid", type=int, nargs=2, default=GRID, metavar=("ROWS", "TOKENS"), help="on a GPU")
    args = parser.parse_args()
    known = tuple(TEXTS) if args.device == "cpu" else GPU_MODELS
    models = tuple(args.models) or known
    all_of_it = models == known and args.questions == QUESTIONS and args.texts is None and tuple(args.grid) == GRID
    results: dict[str, Any] = {"models": {}}
    if args.device == "cpu":
        processors = sorted(os.sched_getaffinity(0))
        if not 1 <= args.threads <= len(processors):
            parser.error(f"--threads is {args.threads}; there are {len(processors)} processors")
        os.sched_setaffinity(0, processors[: args.threads])  # the workers' too
        results |= {"llama-cpp-python": peer_version(args.llama_python), "threads": args.threads}
    for name in models:
        results["models"][name] = (on_cpu if args.device == "cpu" else on_gpu)(name, args)
        finished = all_of_it and tuple(results["models"]) == known
        record = write_record(f"scoring_{args.device}", results, not finished)  # each, in case the next one dies
    print(f"\n{record}")


if __name__ == "__main__":
    main()
