"""load(): arguments, damaged files, and what a Model says of itself."""

import re
import time
from collections import Counter
from dataclasses import replace

import jax
import pytest

import minfer_jax as mj
from tests.gguf.fuzz import mutated_files
from tests.tiny import CASES, write_tiny
from tests.tiny.fixtures import tiny_gguf, tiny_golden  # noqa: F401

SOURCES = ("llama-yarn", "gemma3-linear", "phi3-longrope", "qwen2", "quant-legacy")


def test_2000_damaged_models_load_or_are_refused(tiny_gguf, tmp_path):  # noqa: F811
    """Damage to the metadata of whole models: rope, heads, vocabulary, types; every end is ours, within 2 s."""
    sources = {name: tiny_gguf(name).read_bytes() for name in SOURCES}
    path = tmp_path / "damaged.gguf"
    ends: Counter[str] = Counter()
    for label, content in mutated_files(sources, 2000, seed=3, header_bytes=1 << 14):
        path.write_bytes(content)
        start = time.monotonic()
        try:
            model = mj.load(path, dtype="float32")
            assert sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)) < 50e6, label
            ends["loaded"] += 1
        except mj.MinferError as error:
            assert "\n" not in str(error), label
            ends[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; {label}") from error
        assert time.monotonic() - start < 2 or ends.total() < 20, label  # the first ones compile
    assert ends["loaded"] > 100 and ends["GGUFError"] > 500 and len(ends) >= 3, ends


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 2**32 - 1, "llama.block_count is 4294967295, expected 1 to 10000"),
        ("block_count", 9, "tensor blk.3.attn_q.weight is missing"),
        ("attention.head_count", 0, "llama.attention.head_count is 0"),
        ("rope.freq_base", 0.0, "llama.rope.freq_base is 0.0, expected a positive number"),
        ("attention.layer_norm_rms_epsilon", -1.0, "layer_norm_rms_epsilon is -1.0"),
        ("rope.scaling.type", "magic", "llama.rope.scaling.type 'magic' is not none, linear, yarn or longrope"),
        ("expert_count", 8, "mixture-of-experts"),
    ],
)
def test_impossible_metadata(tmp_path, key, value, message):
    case = CASES["llama"]
    path = write_tiny(replace(case, extra={**case.extra, key: value}), tmp_path / "odd.gguf")
    with pytest.raises(mj.MinferError, match=re.escape(message)) as caught:
        mj.load(path)
    assert "odd.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"implementation": "cuda"}, "implementation is 'cuda'; choose one of dense, xla"),
        ({"dtype": "float16"}, "float16 overflows"),
        ({"dtype": "int8"}, "dtype is 'int8'; choose float32 or bfloat16"),
        ({"n_ctx": 0}, "n_ctx is 0"),
        ({"n_ctx": 1.5}, "n_ctx is 1.5"),
        ({"n_ctx": True}, "n_ctx is True"),
        ({"pre": "made-up"}, "made-up"),
    ],
)
def test_bad_arguments(tiny_gguf, arguments, message):  # noqa: F811
    with pytest.raises(mj.MinferError, match=message):
        mj.load(tiny_gguf("llama"), **arguments)


def test_provenance(smol135):
    model = mj.load(smol135)
    said = model.provenance
    assert said["quantisation"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1}
    assert said["implementation"] == "dense" and said["dtype"] == "float32" and said["architecture"] == "llama"
    assert said["versions"]["jax"] == jax.__version__
    assert repr(model) == (
        "Model(SmolLM2-135M-Instruct.Q4_1.gguf, llama, 30 layers of 576, F32x61 Q4_1x210 Q8_0x1, dense float32, "
        "n_ctx 8192)"
    )
    assert model.sha256() == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_bfloat16_halves_the_weights(tiny_gguf):  # noqa: F811
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        params = mj.load(tiny_gguf("qwen3"), dtype=dtype).params
        sizes[dtype] = params.embedding.nbytes
        assert params.final_norm.dtype == "float32"
    assert sizes["float32"] == 2 * sizes["bfloat16"]
