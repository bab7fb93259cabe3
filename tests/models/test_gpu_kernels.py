"""Models on the GPU kernels. Without a GPU their definitions stand in for them: what a model asks of them, and what it
does with the answers, is then compared with expanded weights."""

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

import minfer_jax as mj
from minfer_jax import implementations
from minfer_jax.gguf import open_gguf
from pallas_kernels import compat, decode_attention, quantised_matmul
from pallas_kernels.decode_attention.reference import reference as attention_reference
from pallas_kernels.quantised_matmul.reference import quantised_matmul as matmul_reference
from tests.generation.golden import GOLDEN, sure_steps
from tests.tiny import CASES


@pytest.fixture
def calls(monkeypatch) -> Counter:
    """The kernels' definitions in their place; counts what is asked of them."""
    count: Counter[str] = Counter()

    def counted(name, function):
        def call(*args, **options):
            count[name] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(quantised_matmul, "quantised_matmul", counted("matmul", matmul_reference))
    monkeypatch.setattr(decode_attention, "decode_attention", counted("attention", attention_reference))
    monkeypatch.setattr(implementations, "why_no_gpu_kernels", lambda: None)
    return count


def steps(model: mj.Model, ids: list[int]) -> np.ndarray:
    """Logits [T, vocab] of one token after another, in two rows of which the second is padding at times."""
    cache, out = mj.init_cache(model.config, 2, 32), []
    for i, token in enumerate(ids):
        positions = jnp.array([[i], [i if i % 3 else -1]])
        logits, cache = mj.forward(model.params, model.config, jnp.full((2, 1), token), positions, cache)
        out.append(np.asarray(logits[0, 0]))
    return np.stack(out)


def expected_products(path, layers: int) -> int:
    """Of each layer q, k, v and gate, up as one where their types agree, else one for each; o, down; and the head."""
    types = {name: tensor.type.name for name, tensor in open_gguf(path).tensors.items()}
    count = int(types.get("output.weight", types["token_embd.weight"]) in quantised_matmul.FORMATS)
    for i in range(layers):
        for names in (
            ("attn_q", "attn_k", "attn_v", "attn_qkv"),
            ("attn_output",),
            ("ffn_gate", "ffn_up"),
            ("ffn_down",),
        ):
            found = [types[key] for name in names if (key := f"blk.{i}.{name}.weight") in types]
            packed = [kind for kind in found if kind in quantised_matmul.FORMATS]
            count += 1 if len(set(found)) == len(set(packed)) == 1 else len(packed)
    return count


@pytest.mark.parametrize(
    ("case", "attentions"),
    [
        ("quant-k", 3),
        ("quant-legacy", 0),  # heads of 16 numbers have no kernel
        ("quant-phi3", 0),
        ("quant-gemma3", 0),
        ("qwen2", 0),  # nor have weights in float32
    ],
)
def test_decode_steps(tiny_gguf, calls, case, attentions):
    ids = CASES[case].tokens(12)
    exact = mj.load(tiny_gguf(case), implementation="dense", dtype="float32")
    model = mj.load(tiny_gguf(case), implementation="pallas")
    ours, wanted = steps(model, ids), steps(exact, ids)
    assert calls["matmul"] == expected_products(tiny_gguf(case), model.config.n_layers)
    assert calls["attention"] == attentions
    assert np.abs(ours - wanted).max() < 4e-3 * np.abs(wanted).max()


def test_many_tokens_take_expanded_weights(tiny_gguf, calls):
    ids = np.array([CASES["quant-k"].tokens(20)])
    positions = np.arange(20)[None]
    exact, model = (mj.load(tiny_gguf("quant-k"), implementation=name) for name in ("dense", "pallas"))
    wanted, _ = mj.forward(exact.params, exact.config, ids, positions)
    ours, _ = mj.forward(model.params, model.config, ids, positions)
    assert not calls
    assert np.abs(ours - wanted).max() < 4e-3 * np.abs(wanted).max()
    assert model.params.runs[0].q.planes["values"].dtype == jnp.float16


def test_what_a_model_says_and_refuses(tiny_gguf, calls):
    path = tiny_gguf("quant-k")
    assert mj.load(path, implementation="pallas").provenance["implementation"] == "pallas"
    with pytest.raises(mj.ArgumentError, match="precision exact needs dense or xla"):
        mj.load(path, implementation="pallas", precision="exact")


@pytest.mark.skipif(compat.why_not_available() is None, reason="they run here")
def test_where_the_kernels_do_not_run(tiny_gguf):
    with pytest.raises(mj.UnsupportedError, match="'pallas' does not run here: .*; leave implementation out"):
        mj.load(tiny_gguf("quant-k"), implementation="pallas")


@pytest.mark.gpu
def test_greedy_text_of_a_real_model(smol_model):
    """Ids of llama.cpp on the exact weights, and its log-probabilities. Measured on an H200: 0.0002 off on average."""
    assert smol_model.provenance["implementation"] == "pallas"
    off = []
    for case in GOLDEN["smol135"]["short"]:
        greedy = mj.Sampler(temperature=0)
        out = mj.generate(smol_model, case["prompt_ids"], max_tokens=len(case["ids"]), sampler=greedy)
        n = min(sure_steps(case["margins"], 0.05), len(out.tokens))
        assert out.tokens[:n] == case["ids"][:n]
        off += list(np.abs(np.subtract(out.token_logprobs[:n], case["logprobs"][:n])))
    assert np.mean(off) < 0.01
