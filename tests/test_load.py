"""load(): arguments, damaged files, and what a Model says of itself."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter

import minfer_jax as mj
from minfer_jax import implementations
from tests.gguf.fuzz import mutated_files
from tests.native.built import needs_library
from tests.tiny import CASES, write_tiny

SOURCES = ("llama-yarn", "gemma3-linear", "phi3-longrope", "qwen2", "quant-legacy")


def test_2000_damaged_models_load_or_are_refused(tiny_gguf, tmp_path):
    """Damage to the metadata of whole models: rope, heads, vocabulary, types; every end is ours, within 2 s."""
    sources = {name: tiny_gguf(name).read_bytes() for name in SOURCES}
    path = tmp_path / "damaged.gguf"
    ends: Counter[str] = Counter()
    for label, content in mutated_files(sources, 2000, seed=3, header_bytes=1 << 14):
        path.write_bytes(content)
        start = time.monotonic()
        try:
            model = mj.load(path)
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
        ("rope.freq_base", 0.0, "llama.rope.freq_base is 0.0, expected a positive number below 1e30"),
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
        ({"implementation": "cuda"}, "implementation is 'cuda'; choose one of dense, xla, ffi"),
        ({"dtype": "int8"}, "dtype is 'int8'; choose one of float32, float16, bfloat16"),
        ({"implementation": ["dense"]}, "implementation is .'dense'"),
        ({"precision": "half"}, "precision is 'half'; choose default or exact"),
        ({"precision": ["exact"]}, "precision is .'exact'"),
        ({"precision": "exact", "dtype": "bfloat16"}, "bfloat16 rounds the weights; precision exact needs float32"),
        ({"n_ctx": 2**31}, "n_ctx is 2147483648"),
        ({"n_ctx": 0}, "n_ctx is 0"),
        ({"n_ctx": 1.5}, "n_ctx is 1.5"),
        ({"n_ctx": True}, "n_ctx is True"),
        ({"pre": "made-up"}, "made-up"),
    ],
)
def test_bad_arguments(tiny_gguf, arguments, message):
    with pytest.raises(mj.MinferError, match=message):
        mj.load(tiny_gguf("llama"), **arguments)


@pytest.mark.parametrize("name", [None, 5, b"x", "", "a" * 300, "~nosuchuser/x.gguf", "a\0b.gguf", "made-up"])
def test_names_that_are_none(name):
    with pytest.raises(mj.MinferError) as caught:
        mj.load(name)
    assert "\n" not in str(caught.value)


def test_i01_a_device_that_is_missing(tiny_gguf):
    """One line with the way to install it, not JAX's own failure and not a silent fallback."""
    code = f"import minfer_jax as mj\ntry: mj.load({str(tiny_gguf('llama'))!r})\nexcept mj.MinferError as e: print(e)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cuda"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.startswith("JAX finds no device for JAX_PLATFORMS=cuda") and "pip install" in run.stdout


def test_provenance(smol135):
    model = mj.load(smol135)
    said = model.provenance
    assert said["quantisation"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1} and said["architecture"] == "llama"
    assert said["versions"]["jax"] == jax.__version__
    assert repr(model) == (
        "Model(SmolLM2-135M-Instruct.Q4_1.gguf, llama, 30 layers of 576, Q4_1x210 F32x61 Q8_0x1, "
        f"{said['implementation']} {said['dtype']}, n_ctx 8192)"
    )
    assert model.sha256() == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


NATIVE, DENSE = {"implementation": "ffi", "dtype": "packed"}, {"implementation": "dense", "dtype": "float32"}
NUMERICS = [
    ({"dtype": "float32"}, DENSE),
    ({"dtype": "bfloat16"}, DENSE | {"dtype": "bfloat16"}),
    ({"dtype": "float16"}, DENSE | {"dtype": "float16"}),
    ({"implementation": "dense"}, DENSE),
    ({"implementation": "dense", "precision": "exact"}, DENSE),
    ({"implementation": "xla"}, {"implementation": "xla", "dtype": "packed"}),
]


def numerics(model: mj.Model) -> dict[str, str]:
    return {key: value for key, value in model.provenance.items() if key in ("implementation", "dtype", "precision")}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        *NUMERICS,
        pytest.param({}, NATIVE | {"precision": "default"}, marks=needs_library),
        pytest.param({"precision": "default"}, NATIVE | {"precision": "default"}, marks=needs_library),
        pytest.param({"precision": "exact"}, NATIVE | {"precision": "exact"}, marks=needs_library),
        pytest.param({"implementation": "ffi"}, NATIVE | {"precision": "default"}, marks=needs_library),
    ],
)
def test_the_numerics_are_those_asked_for(tiny_gguf, arguments, wanted):
    """Native kernels unless expanded weights are asked for; and the products do what is said of them."""
    model = mj.load(tiny_gguf("quant-legacy"), **arguments)
    assert numerics(model) == wanted
    q = model.params.runs[0].q
    assert q.is_tiled == (wanted["implementation"] == "ffi") and q.exact == (wanted.get("precision") == "exact")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [*NUMERICS, ({}, DENSE), ({"precision": "default"}, DENSE), ({"precision": "exact"}, DENSE)],
)
def test_the_numerics_without_a_native_library(tiny_gguf, arguments, wanted, monkeypatch):
    monkeypatch.setattr(implementations, "library", lambda: None)
    assert numerics(mj.load(tiny_gguf("quant-legacy"), **arguments)) == wanted


def test_16_bits_halve_the_weights(tiny_gguf):
    sizes = {}
    for dtype in ("float32", "float16", "bfloat16"):
        params = mj.load(tiny_gguf("qwen3"), dtype=dtype).params
        sizes[dtype] = params.embedding.nbytes
        assert params.final_norm.dtype == "float32"
    assert sizes["float32"] == 2 * sizes["bfloat16"] == 2 * sizes["float16"]


@pytest.mark.parametrize(
    "options", [{}, {"precision": "exact"}, {"implementation": "xla"}, {"implementation": "dense"}]
)
def test_types_without_kernels_are_not_rounded(tmp_path, caplog, options):
    """TQ2_0 has no kernels: the weights are those of the file's float32 twin, and one line says what that costs."""
    case = replace(CASES["quant-k"], types={"attn_q": (T.TQ2_0,), "ffn_down": (T.TQ2_0, T.Q4_K)})
    path = write_tiny(case, tmp_path / "ternary.gguf")
    twin = first_logprobs(write_tiny(case, tmp_path / "twin.gguf", expanded=True), implementation="dense")
    caplog.clear()
    ours = first_logprobs(path, **options)
    said = [r.getMessage() for r in caplog.records]
    line = f"ternary.gguf: no kernels for TQ2_0, weights kept in float32 ({5 * 4 * 256 * 256 / 1e9:.2f} GB)"
    is_dense = mj.load(path, **options).provenance["implementation"] == "dense"  # where no library was built, too
    assert said == ([] if is_dense else [line])
    assert np.abs(ours - twin).max() < (1e-4 if options else 2e-2)


def first_logprobs(path, **options) -> np.ndarray:
    model = mj.load(path, **options)
    ids = CASES["llama"].tokens()
    return np.array(mj.score_tokens(model, [(ids[:1], ids[1:])])[0].token_logprobs)


def write_copy(reader, path, tensors, metadata=True, prepare=lambda writer: None):
    """Some tensors of a file, with or without its metadata, in a new file."""
    writer = GGUFWriter(path, "llama")
    prepare(writer)
    for key, field in reader.fields.items():
        if metadata and not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0], *field.types[1:2])
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_g05_a_split_model_scores_as_the_whole(tiny_gguf, tmp_path):
    """Any part, or the folder."""
    reader = GGUFReader(tiny_gguf("llama"))
    expected = first_logprobs(tiny_gguf("llama"))
    for i in range(3):

        def split_keys(writer, i=i):
            writer.add_uint16("split.no", i)
            writer.add_uint16("split.count", 3)
            writer.add_int32("split.tensors.count", len(reader.tensors))

        path = tmp_path / f"model-{i + 1:05d}-of-00003.gguf"
        write_copy(reader, path, reader.tensors[i * 10 : (i + 1) * 10 if i < 2 else None], i == 0, split_keys)
    for path in (*tmp_path.iterdir(), tmp_path):
        np.testing.assert_array_equal(first_logprobs(path), expected)


def test_g02_g03_version_2_and_alignment_64(tiny_gguf, tmp_path):
    """The same layout under version 2, and tensors on 64-byte boundaries, score the same."""
    whole = tiny_gguf("llama")
    content = bytearray(whole.read_bytes())
    content[4] = 2
    (tmp_path / "v2.gguf").write_bytes(content)
    reader = GGUFReader(whole)
    write_copy(reader, tmp_path / "a64.gguf", reader.tensors, prepare=lambda w: w.add_custom_alignment(64))
    for path in tmp_path.iterdir():
        np.testing.assert_array_equal(first_logprobs(path), first_logprobs(whole))
