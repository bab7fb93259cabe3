"""Greedy continuations by llama.cpp on the same weights in float32 (data/generate.json), and how to compare."""

import json
from pathlib import Path
from typing import Any

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "data" / "generate.json").read_text(encoding="utf-8")
)


def sure_steps(margins: list[float], near_tie: float) -> int:
    """How many tokens must agree: those before the first step whose runner-up is closer than ``near_tie``."""
    return next((i for i, margin in enumerate(margins) if margin < near_tie), len(margins))
