"""Models on the GPU kernels. Without a GPU their definitions stand in for them: what a model asks of them, and what it
does with the answers, is then compared with expanded weights."""

from collections import Counter
from dataclasses import replace

import gguf
import jax.numpy as jnp
import numpy as np
import pytest

import minfer_jax as mj
from minfer_jax import implementations
from minfer_jax.gguf import open_gguf
from minfer_jax.models.head import token_logprobs
from minfer_jax.quant import QuantTensor, dense_kernels
from pallas_kernels import compat, decode_attention, decode_layers, dense_matmul, quantised_matmul, rms_norm
from pallas_kernels.decode_attention.reference import reference as attention_reference
from pallas_kernels.decode_layers.reference import reference as layers_reference
from pallas_kernels.dense_matmul import reference as dense_reference
from pallas_kernels.quantised_matmul.reference import quantised_matmul as matmul_reference
from pallas_kernels.rms_norm.reference import rms_norm as norm_reference
from tests.generation.golden import GOLDEN, sure_steps
from tests.tiny import CASES, write_tiny
from tests.traces import traced_anew


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
    monkeypatch.setattr(decode_layers, "decode_layers", counted("layers", layers_reference))
    for name in ("gated_matmul", "log_sum_exp"):
        monkeypatch.setattr(dense_matmul, name, counted(name, getattr(dense_reference, name)))
    monkeypatch.setattr(dense_matmul, "matmul", counted("dense", dense_reference.matmul))
    monkeypatch.setattr(rms_norm, "rms_norm", counted("norm", norm_reference))
    monkeypatch.setattr(implementations, "why_no_gpu_kernels", lambda: None)
    return count


def steps(model: mj.Model, ids: list[int], rows: int = 2) -> np.ndarray:
    """Logits [T, vocab] of one token after another, in rows of which the second is padding at times."""
    cache, out = mj.init_cache(model.config, rows, 32), []
    for i, token in enumerate(ids):
        positions = jnp.array([[i], [i if i % 3 else -1]])[:rows]
        logits, cache = mj.forward(model.params, model.config, jnp.full((rows, 1), token), positions, cache)
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
    model = traced_anew(mj.load(tiny_gguf(case), implementation="pallas"))
    ours, wanted = steps(model, ids), steps(exact, ids)
    assert calls["matmul"] == expected_products(tiny_gguf(case), model.config.n_layers)
    assert calls["attention"] == attentions
    assert np.abs(ours - wanted).max() < 4e-3 * np.abs(wanted).max()


def test_a_row_alone_takes_one_kernel_for_each_run_of_layers(tmp_path, calls):
    """Of which here are two: a layer in which q, k and v differ in type, and two in which they do not."""
    q4, q6 = (gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q6_K"))
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    types = {"token_embd": (q6,)} | {name: (q4,) for name in names} | {"attn_v": (q6, q4, q4)}
    path = write_tiny(replace(CASES["quant-k"], types=types), tmp_path / "model.gguf")
    ids = CASES["quant-k"].tokens(12)
    exact, model = (traced_anew(mj.load(path, implementation=name)) for name in ("dense", "pallas"))
    ours, wanted = steps(model, ids, 1), steps(exact, ids, 1)
    assert calls == {"layers": 2, "norm": 1, "matmul": 1}  # and the head
    assert np.abs(ours - wanted).max() < 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("case", "traces", "dense", "gated", "norms"),
    [
        ("quant-k", 3, 3, 1, 2),  # q, k and v; heads; down
        ("quant-legacy", 6, 2, 1, 2),  # k and v have 32 rows
        ("quant-phi3", 3, 1, 0, 2),  # the heads alone are whole tiles
        ("quant-gemma3", 2, 0, 0, 6),  # rows of 32 numbers; norms of q, k, and behind attention and FFN
        ("qwen2", 2, 1, 0, 2),
    ],
)
def test_many_tokens_take_expanded_weights(tiny_gguf, calls, case, traces, dense, gated, norms):
    """Of a trace, one for a run of layers and one for the last layer: kernels for q, k and v, for the heads, for gate
    and up, for the rest of the FFN, where shapes are whole tiles; and for norms."""
    ids = np.array([CASES[case].tokens(20)])
    positions = np.arange(20)[None]
    exact, model = (traced_anew(mj.load(tiny_gguf(case), implementation=name)) for name in ("dense", "pallas"))
    wanted, _ = mj.forward(exact.params, exact.config, ids, positions)
    ours, _ = mj.forward(model.params, model.config, ids, positions)
    wanted_calls = {"dense": traces * dense, "gated_matmul": traces * gated, "norm": traces * norms + 1}
    assert calls == {name: count for name, count in wanted_calls.items() if count}
    assert np.abs(ours - wanted).max() < 4e-3 * np.abs(wanted).max()
    assert model.params.runs[0].q.planes["values"].dtype == jnp.float16


def test_one_token_is_no_decode_step(tiny_gguf, calls):
    """Which has kernels that round otherwise: as a score, also in a shape of its own, and as a prompt."""
    model = traced_anew(mj.load(tiny_gguf("quant-k"), implementation="pallas"))
    runtime = mj.Runtime(model, promotion="blocking")
    for _ in range(3):
        mj.score_tokens(runtime, [([5], [7])], progress=False)
    assert any(shape.promoted for shape in runtime.cache_info().shapes.values())
    assert calls["dense"] and not calls["matmul"]
    before = calls["dense"]
    mj.generate(runtime, [5], max_tokens=1)
    assert calls["dense"] > before and not calls["matmul"]


def test_no_rows(tiny_gguf, calls):
    model = traced_anew(mj.load(tiny_gguf("quant-k"), implementation="pallas"))
    ids, positions = np.array([[5, 7]]), np.array([[0, 1]])
    logits, _ = mj.forward(model.params, model.config, ids, positions, None, np.zeros(0, np.int32))
    assert logits.shape == (0, model.config.vocab_size)


def test_log_probabilities_by_one_kernel(tiny_gguf, calls):
    """Against float64, also of a target far below the others; without the kernel where it does not fit."""
    model = traced_anew(mj.load(tiny_gguf("quant-k"), implementation="pallas"))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(384, 256)).astype(np.float16)
    head = QuantTensor({"values": jnp.asarray(values)}, "F16", (384, 256), "pallas")
    hidden, targets = rng.normal(size=(7, 256)).astype(np.float32), rng.integers(0, 384, 7)
    config = replace(model.config, vocab_size=384)
    params = replace(model.params, head=head)
    z = hidden.astype(np.float64) @ values.astype(np.float64).T
    z -= np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True)) + z.max(1, keepdims=True)
    targets[0], targets[1] = z[0].argmax(), z[1].argmin()
    ours, best = token_logprobs(params, config, hidden, targets)
    assert calls["log_sum_exp"] == 1
    np.testing.assert_allclose(ours, z[np.arange(7), targets], atol=0.01)
    np.testing.assert_array_equal(best, z.argmax(1))
    capped = replace(config, final_softcap=1e6)
    np.testing.assert_allclose(token_logprobs(params, capped, hidden, targets)[0], ours, atol=0.01)
    assert calls["log_sum_exp"] == 1


def test_a_log_probability_is_never_above_zero(calls):
    """The only likely token: two sums in different orders."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(128, 64)).astype(np.float16)
    w = QuantTensor({"values": jnp.asarray(values)}, "F16", (128, 64), "pallas")
    ours, best = dense_kernels.log_softmax_at(jnp.asarray(20.0 * values, jnp.float32), w, jnp.arange(128))
    assert (np.asarray(ours) <= 0).all() and (np.asarray(ours) > -1e-3).all() and (best == np.arange(128)).all()


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


@pytest.mark.gpu
def test_a_text_has_the_bits_that_it_has_alone(smol_model):
    """Scored in batches of all sizes, and generated from beside others; padded to whatever length."""
    texts = [np.random.default_rng(n).integers(1000, 40000, n).tolist() for n in (2, 17, 48, 130, 700)]
    pairs = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in texts]
    alone = [mj.score_tokens(smol_model, [pair], progress=False)[0] for pair in pairs]
    for many in (pairs, pairs * 4):
        for batch_tokens in (None, 1024):
            scores = mj.score_tokens(smol_model, many, progress=False, batch_tokens=batch_tokens)
            assert [score.token_logprobs for score in scores[: len(pairs)]] == [s.token_logprobs for s in alone]
    greedy = mj.Sampler(temperature=0)
    prompts = [texts[0][:1], *texts[:4]]
    apart = [mj.generate(smol_model, text, max_tokens=12, sampler=greedy) for text in prompts]
    beside = mj.generate_batch(smol_model, prompts, max_tokens=12, sampler=greedy)
    assert [(g.tokens, g.token_logprobs) for g in beside] == [(g.tokens, g.token_logprobs) for g in apart]
