"""Cases G07 and G08 on the real SmolLM2: row order of Q and K, rope base, Llama-3 factors."""

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import minfer_jax as mj
from tests.test_load import write_copy

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "rope_smollm2.json").read_text())


def text_logprobs(path) -> np.ndarray:
    ids = GOLDEN["ids"]
    return np.array(mj.score_tokens(mj.load(path, precision="exact"), [(ids[:1], ids[1:])])[0].token_logprobs)


@pytest.fixture(scope="module")
def reader(smol135):
    return GGUFReader(smol135)


def test_g07_the_file_as_it_is(smol135):
    values = text_logprobs(smol135)
    np.testing.assert_allclose(values, GOLDEN["cases"]["none"], atol=1e-3)
    bugs = {name: value for name, value in GOLDEN["fingerprints"].items() if name.startswith("bug_")}
    assert all(abs(values.sum() - value) > 0.2 for value in bugs.values())


def test_g08_llama3_factors_from_a_tensor(reader, tmp_path):
    """The tensor rope_freqs.weight divides the frequencies; single values move by up to 0.024."""

    def add_factors(writer):
        writer.add_tensor("rope_freqs.weight", np.array(GOLDEN["rope_freqs"], np.float32))

    path = write_copy(reader, tmp_path / "llama3.gguf", reader.tensors, prepare=add_factors)
    np.testing.assert_allclose(text_logprobs(path), GOLDEN["cases"]["llama3_rope_freqs"], atol=1e-3)


def test_g08_unknown_tensors_are_named(reader, tmp_path, caplog):
    """Beside the layers: a warning. Inside a layer: refused, for the numbers would be wrong."""
    extra = np.ones(4, np.float32)
    path = write_copy(
        reader, tmp_path / "a.gguf", reader.tensors, prepare=lambda w: w.add_tensor("mystery.weight", extra)
    )
    with caplog.at_level("WARNING", logger="minfer_jax"):
        mj.load(path)
    assert any("mystery.weight" in record.getMessage() for record in caplog.records)
    path = write_copy(
        reader, tmp_path / "b.gguf", reader.tensors, prepare=lambda w: w.add_tensor("blk.3.attn_sinks.weight", extra)
    )
    with pytest.raises(mj.UnsupportedError, match="b.gguf: this architecture has no place for blk.3.attn_sinks.weight"):
        mj.load(path)
