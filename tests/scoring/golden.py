"""Values by llama.cpp on the same weights in float32 (data/scoring.json), and how near ours must come."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
GOLDEN: dict[str, dict[str, Any]] = json.loads((DATA / "scoring.json").read_text(encoding="utf-8"))
PERPLEXITY_TEXT = (DATA / "perplexity_text.txt").read_bytes().decode()
LONG_TEXT = "".join(f"Item {i}: value {i * i % 97}. " for i in range(60))

LIMIT = {"smol135": 0.001, "qwen05": 0.001, "gemma270": 0.01}
"""Largest difference of one log-probability with everything in float32."""
