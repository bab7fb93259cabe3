"""How far each implementation's log-probabilities are from the exact ones, and how fast it scores.

For each real model, on the texts of tests/data/scoring.json (llama.cpp on the same weights in float32): mean and
largest absolute difference of one log-probability, in nats. For SmolLM2 also the throughput of 200 pairs of random
length: a first pass, which compiles, and the best of two more.

    python -m benchmarks.fidelity [model ...]
"""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import minfer_jax as mj
from benchmarks.record import write_record

GOLDEN = Path(__file__).parent.parent / "tests" / "data" / "scoring.json"
NAMES = {"smol135": "smollm2-135m", "qwen05": "qwen2.5-coder-0.5b", "gemma270": "gemma3-270m"}
CASES: tuple[dict[str, str], ...] = (
    {"implementation": "ffi"},
    {"implementation": "ffi", "precision": "exact"},
    {"implementation": "pallas"},
    {"implementation": "dense"},
    {"implementation": "dense", "dtype": "float16"},
    {"implementation": "dense", "dtype": "bfloat16"},
    {"implementation": "xla"},
)


def differences(model: mj.Model, golden: dict[str, Any]) -> dict[str, float]:
    """Mean and largest |difference| over every scored token of the golden texts, and of the sums of choices."""
    texts = list(golden["texts"].values())
    ours, wanted = [], []
    for score, text in zip(mj.score_texts(model, [text["text"] for text in texts], progress=False), texts, strict=True):
        assert [*score.prefix, *score.tokens] == text["ids"]
        ours += [value for value in score.token_logprobs if value is not None]
        wanted += text["token_logprobs"][1:]
    error = np.abs(np.subtract(ours, wanted))
    pairs = [(q["context"], c["choice"], c["logprob"]) for q in golden["choices"] for c in q["choices"]]
    sums = [score.logprob for score in mj.score(model, [pair[:2] for pair in pairs], progress=False)]
    choices = np.abs(np.subtract(sums, [pair[2] for pair in pairs]))
    return {
        "tokens": len(error),
        "mean": round(float(error.mean()), 6),
        "max": round(float(error.max()), 6),
        "bias": round(float(np.subtract(ours, wanted).mean()), 6),
        "choices_max": round(float(choices.max()), 6),
    }


def throughput(model: mj.Model) -> dict[str, float]:
    rng = random.Random(0)

    def ids(n: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(n)]

    pairs = [(ids(rng.randrange(5, 300)), ids(rng.randrange(1, 12))) for _ in range(200)]
    runtime, seconds = mj.Runtime(model), []
    for _ in range(3):
        start = time.perf_counter()
        mj.score_tokens(runtime, pairs, progress=False)
        seconds.append(time.perf_counter() - start)
    n = sum(len(context) + len(continuation) for context, continuation in pairs)
    return {
        "tokens": n,
        "shapes": len(runtime.cache_info().programs),
        "first_s": round(seconds[0], 2),
        "tokens_per_s": round(n / min(seconds[1:])),
    }


def main() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    results: dict[str, Any] = {}
    for name in sys.argv[1:] or NAMES:
        for case in CASES:
            if case["implementation"] == {"cpu": "pallas", "gpu": "ffi"}[jax.default_backend()]:
                continue
            model = mj.load(NAMES[name], **case)
            row: dict[str, Any] = differences(model, golden[name])
            if name == "smol135":
                row["scoring"] = throughput(model)
            about = model.provenance
            numerics = " ".join(filter(None, (about["implementation"], about["dtype"], about.get("precision"))))
            results.setdefault(name, {})[numerics] = row
            print(name, numerics, row, flush=True)
            record = f"fidelity_{jax.default_backend()}"
            path = write_record(record, results, list(results) != list(NAMES))  # each case, in case the next one dies
    print(path)


if __name__ == "__main__":
    main()
