"""Runs llama.cpp on the float32 twin of every tiny file and keeps its logits as golden data.

Needs `llama-cpp-python` (0.3.36 made the stored values): `python -m tests.tiny.make_golden`.
The twin and a float32 KV cache keep llama.cpp from rounding; flash attention is off for the same reason.
What stays rounded is GELU, which its CPU code reads from a table of 16-bit floats (gemma2, gemma3).
"""

import json
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np

from . import CASES, WITHOUT, Case, write_tiny

GOLDEN = Path(__file__).parent.parent / "data" / "tiny_logits.json"
POSITIONS = (8, 21, 39)
_F32 = 0  # the number of F32 among ggml's types


def llama_logits(case: Case, folder: str) -> np.ndarray:
    """Logits [tokens, vocabulary] of llama.cpp for the fixed tokens of `case`, float32 throughout."""
    path = write_tiny(case, Path(folder) / "twin.gguf", expanded=True)
    model = llama_cpp.Llama(
        str(path),
        n_ctx=case.context,
        logits_all=True,
        flash_attn=False,
        type_k=_F32,
        type_v=_F32,
        n_threads=1,
        n_threads_batch=1,
        verbose=False,
    )
    tokens = case.tokens()
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens)], np.float32)
    model.close()
    return logits


def next_logprobs(logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    """Log-probability of each token after the first, in float64."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x[np.arange(len(x)), tokens[1:]] - np.log(np.exp(x).sum(-1))


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def main() -> None:
    """Write the golden file."""
    golden: dict = {
        "llama_cpp_python": llama_cpp.__version__,
        "positions": list(POSITIONS),
        "cases": {},
        "without": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            logits, tokens = llama_logits(case, folder), case.tokens()
            golden["cases"][name] = {
                "tokens": tokens,
                "logprobs": _rounded(next_logprobs(logits, tokens)),
                "logits": [_rounded(logits[position]) for position in POSITIONS],
            }
        for name, (_, case) in WITHOUT.items():
            logprobs = next_logprobs(llama_logits(case, folder), case.tokens())
            golden["without"][name] = {"logprobs": _rounded(logprobs)}
    lines = json.dumps(golden, separators=(",", ":")).replace('"tokens"', '\n"tokens"')
    GOLDEN.write_text(lines.replace('"logprobs"', '\n"logprobs"').replace('"logits"', '\n"logits"') + "\n")


if __name__ == "__main__":
    main()
