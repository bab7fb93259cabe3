"""Tokenizers of the real models, built once, and the golden values they must give."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minfer_jax.gguf import Metadata, open_gguf
from minfer_jax.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
GOLDEN = json.loads((DATA / "tokenizer_golden.json").read_text())

MODELS = [
    "smol135",
    pytest.param("qwen05", marks=pytest.mark.models),
    pytest.param("gemma270", marks=pytest.mark.models),
]
CHAT_MODELS = MODELS[:2]


def small_metadata(source: str = "small.gguf", **changes: Any) -> Metadata:
    """Metadata of a small BPE vocabulary: all bytes, "ab", and two control tokens. Keys of ``changes`` belong to
    ``tokenizer.ggml.``; None removes one."""
    from tests.tokenizer.probe import CHARACTER_OF_BYTE

    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [CHARACTER_OF_BYTE[byte] for byte in range(256)] + ["ab", "<|bos|>", "<|im_end|>"],
        "token_type": np.array([1] * 257 + [3] * 2, np.int32),
        "merges": ["a b"],
        "bos_token_id": 257,
        "eos_token_id": 258,
        **changes,
    }
    return Metadata({f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None}, source)


@pytest.fixture(scope="session")
def tokenizers(request: pytest.FixtureRequest) -> Any:
    """A function from a model's fixture name to its tokenizer."""
    built: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in built:
            built[name] = Tokenizer.from_metadata(open_gguf(request.getfixturevalue(name)).metadata)
        return built[name]

    return get
