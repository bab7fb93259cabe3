"""Scoring never holds logits of the whole vocabulary (S05)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minfer_jax.model import Model
from tests.promises import rounding
from tests.scoring.golden import DATA, LIMIT


@pytest.mark.models
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of memory from Linux")
def test_s05_memory_of_long_texts(gemma270: Path, gemma_model: Model) -> None:
    # A vocabulary of 262,144: float32 logits alone would be 4.3 GB and 8.6 GB.
    probe = Path(__file__).parent / "memory_probe.py"
    command = [sys.executable, str(probe), str(gemma270), str(DATA / "perplexity_text.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    growth = {name: out[name]["growth"] / 1e9 for name in out}
    assert max(growth.values()) < 1.0, growth
    # The first of the eight is the beginning of the long one.
    bound = rounding(gemma_model, LIMIT["gemma270"])
    np.testing.assert_allclose(out["one"]["logprobs"], out["eight"]["logprobs"], rtol=0, atol=bound)
