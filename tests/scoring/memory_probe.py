"""Run as a script with a model file: score long texts, print how far memory rose above the loaded model.

Prints one JSON line: growth in bytes for one sequence of 4096 ids and for 8 of 1024, and the log-probabilities of the
first 1023 scored ids by both.
"""

import json
import sys
from pathlib import Path

from minfer_jax.load import load
from minfer_jax.scoring import score_tokens


def status(key: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(key))
    return int(line.split()[1]) * 1024


def main() -> None:
    path, text = sys.argv[1:]
    model = load(path)
    ids = model.tokenizer.encode(Path(text).read_bytes().decode())
    out = {}
    for name, n, count in (("one", 4096, 1), ("eight", 1024, 8)):
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = status("VmRSS")
        pieces = [ids[i * n : (i + 1) * n] for i in range(count)]
        scores = score_tokens(model, [(piece[:1], piece[1:]) for piece in pieces], progress=False)
        out[name] = {"growth": status("VmHWM") - before, "logprobs": scores[0].token_logprobs[:1023]}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
