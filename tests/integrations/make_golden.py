"""Make data/lm_eval.json with the harness's own `hf` model, which is transformers on the file's weights in float32.

Needs lm_eval, torch and transformers: ``pip install lm_eval transformers accelerate peft gguf torch``, then run this
file with the path of SmolLM2-135M-Instruct Q4_1 (`minfer-jax info smollm2-135m` tells it). Of minfer-jax it needs
nothing: transformers reads the GGUF file by itself.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAX_LENGTH = 96
"""Context window: some contexts and texts do not fit."""
CHAT = {"apply_chat_template": True, "fewshot_as_multiturn": True, "system_instruction": "Answer briefly."}
RUNS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "plain": (["choice", "cloze", "across", "rolling", "generate"], {}),
    "chat": (["choice", "generate", "prefilled"], CHAT),
}


def answers(results: dict[str, Any]) -> dict[str, Any]:
    """By task, of every document in turn: what was asked and answered; and the metrics."""
    samples = {
        task: [{"asked": [list(a) for a in s["arguments"]], "answered": [r[0] for r in s["resps"]]} for s in of_task]
        for task, of_task in results["samples"].items()
    }
    return {"samples": samples, "results": results["results"]}


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    os.chdir(HERE / "tasks")
    file = Path(sys.argv[1]).resolve()
    torch.manual_seed(0)
    window = {"max_length": MAX_LENGTH, "batch_size": 1}
    model = HFLM(pretrained=str(file.parent), gguf_file=file.name, dtype="float32", device="cpu", **window)
    packages = ("lm_eval", "torch", "transformers", "gguf")
    made: dict[str, Any] = {"made_with": " ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)}
    for name, (tasks, options) in RUNS.items():
        results = simple_evaluate(model, tasks=[f"{task}.yaml" for task in tasks], bootstrap_iters=0, **options)
        assert results is not None
        made[name] = answers(results)
    path = HERE.parent / "data" / "lm_eval.json"
    path.write_text(json.dumps(made, ensure_ascii=False, indent=1, default=str) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
