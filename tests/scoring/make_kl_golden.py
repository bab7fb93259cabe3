"""Runs llama.cpp's own tool on tiny models: the reference files that it writes, and the numbers that it prints.

Needs the program ``llama-perplexity`` (of the llama.cpp in llama-cpp-python 0.3.36 for the stored values):
``python -m tests.scoring.make_kl_golden PATH_OF_LLAMA_PERPLEXITY``. The models are in float32, those compared after a
detour over Q4_0, so that no kernel of llama.cpp rounds.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from minfer_jax.gguf.requantize import requantize
from tests.tiny import CASES, write_tiny

DATA = Path(__file__).parent.parent / "data"
TEXT = "the inner theater in an era of other things, and then another " * 12
N_CTX, CHUNKS = 32, 7
KL_CASES = ("llama", "mistral")  # without BOS and with


def write_pair(case: str, folder: Path) -> tuple[Path, Path]:
    """The reference, and what Q4_0 makes of it, both in float32."""
    reference = write_tiny(CASES[case], folder / f"{case}.gguf", expanded=True)
    requantize(reference, folder / f"{case}-q4_0.gguf", "Q4_0")
    requantize(folder / f"{case}-q4_0.gguf", folder / f"{case}-q4_0-f32.gguf", "F32")
    return reference, folder / f"{case}-q4_0-f32.gguf"


def numbers(printed: str) -> dict[str, list[float]]:
    """Value and error, where there is one, by the name that the tool prints."""
    found = {}
    for line in printed.splitlines():
        if match := re.match(r"([\w. %Δ()/\-]+?)\s*:\s+(-?[\d.]+)(?:%| ±\s+([\d.]+))?", line):
            found[match[1]] = [float(value) for value in match.groups()[1:] if value is not None]
    return found


def main() -> None:
    """Write the golden files."""
    golden = {"n_ctx": N_CTX, "chunks": CHUNKS, "text": TEXT, "cases": {}}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(TEXT, encoding="utf-8")
        for case in KL_CASES:
            reference, model = write_pair(case, Path(folder))
            kld = DATA / f"kl_{case}.kld"
            exact = ["-b", str(N_CTX), "-c", str(N_CTX), "-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
            tool = [sys.argv[1], *exact, "--kl-divergence-base", str(kld)]
            made = ["-m", str(reference), "-f", str(text), "--chunks", str(CHUNKS)]
            subprocess.run([*tool, *made], check=True, capture_output=True)
            compared = ["-m", str(model), "--kl-divergence"]
            printed = subprocess.run([*tool, *compared], check=True, capture_output=True, text=True).stdout
            golden["cases"][case] = numbers(printed)
    (DATA / "kl.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
