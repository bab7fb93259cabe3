"""Every architecture, rope variant and tensor type against llama.cpp's logits on the same random weights."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import forward, init_cache, linear
from tests.native.built import needs_library
from tests.tiny import CASES, WITHOUT, write_tiny
from tests.traces import traced_anew

# Observed: 5e-5. llama.cpp reads GELU from a table of 16-bit floats, so Gemma's golden values are off by 8e-4.
LIMIT, GEMMA_LIMIT = 2e-4, 1e-3

QUANTISED = [name for name in CASES if name.startswith("quant-")]
DECODED = ["llama", "llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "gemma3-linear", "phi3-longrope"]

compiled_forward = jax.jit(forward, static_argnums=1)
load_f32 = partial(load, dtype="float32")


def _limit(name: str) -> float:
    return GEMMA_LIMIT if "gemma" in name else LIMIT


def _run(model: Model, tokens: list[int]) -> np.ndarray:
    """Logits [T, vocab] of one row in one call, without a cache."""
    ids = jnp.array([tokens], jnp.int32)
    places = jnp.arange(ids.shape[1], dtype=jnp.int32)[None]
    return np.array(compiled_forward(model.params, model.config, ids, places, None)[0][0])


def _logprobs(logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    x = logits[:-1].astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x[np.arange(len(x)), tokens[1:]] - np.log(np.exp(x).sum(-1))


def _assert_golden(logits: np.ndarray, golden: dict, name: str) -> None:
    wanted = golden["cases"][name]
    limit = _limit(name)
    np.testing.assert_allclose(logits[golden["positions"]], wanted["logits"], rtol=0, atol=limit)
    np.testing.assert_allclose(_logprobs(logits, wanted["tokens"]), wanted["logprobs"], rtol=0, atol=2 * limit)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_llama_cpp(name, tiny_gguf, tiny_golden):
    model = load_f32(tiny_gguf(name), implementation="dense")
    _assert_golden(_run(model, tiny_golden["cases"][name]["tokens"]), tiny_golden, name)


@pytest.mark.parametrize("name", QUANTISED)
def test_packed_weights_give_the_same_logits(name, tiny_gguf, tiny_golden):
    model = load_f32(tiny_gguf(name), implementation="xla")
    _assert_golden(_run(model, tiny_golden["cases"][name]["tokens"]), tiny_golden, name)


@needs_library
@pytest.mark.parametrize("name", CASES)
def test_native_products_give_the_same_logits(name, tiny_gguf, tiny_golden):
    model = load_f32(tiny_gguf(name), implementation="ffi", precision="exact")
    _assert_golden(_run(model, tiny_golden["cases"][name]["tokens"]), tiny_golden, name)


@needs_library
@pytest.mark.parametrize("name", QUANTISED)
def test_native_products_with_rounded_inputs_are_near(name, tiny_gguf, tiny_golden):
    """Observed: 3e-3."""
    golden = tiny_golden["cases"][name]
    logits = _run(load_f32(tiny_gguf(name), implementation="ffi"), golden["tokens"])
    np.testing.assert_allclose(logits[tiny_golden["positions"]], golden["logits"], rtol=0, atol=1e-2)


@needs_library
def test_tiled_layers_enter_a_product_as_a_whole_stack(tiny_gguf, monkeypatch):
    """A layer cut out of its stack would be copied at every step."""
    model, seen = traced_anew(load_f32(tiny_gguf("llama"), implementation="ffi")), []

    def products(x, weights, biases, *, activation=None, **fused):
        seen.extend((w.index is not None, w.planes["values"].shape) for w in weights)
        return [jnp.zeros((*x.shape[:-1], w.shape[0])) for w in (weights[:1] if activation else weights)]

    monkeypatch.setattr(linear, "products", products)
    _run(model, [1] * 7)
    (run,) = model.params.runs
    stacked = [(True, getattr(run, field).planes["values"].shape) for field in "q k v o gate up down".split()]
    head = (False, model.params.embedding.planes["values"].shape)
    assert seen == [*stacked, *stacked, head]  # the layers in a loop, then the last one


@pytest.mark.parametrize("name", WITHOUT)
def test_g08_g10_a_rule_shows_in_the_numbers(name, tiny_gguf, tiny_golden):
    """The golden values with and without the rule differ, and the file without it is read without it."""
    base, case = WITHOUT[name]
    wanted = np.array(tiny_golden["without"][name]["logprobs"])
    assert np.abs(wanted - tiny_golden["cases"][base]["logprobs"]).max() > 0.5
    tokens = case.tokens()
    found = _logprobs(_run(load_f32(tiny_gguf(name), implementation="dense"), tokens), tokens)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2 * _limit(name))


@pytest.mark.parametrize("name", DECODED)
def test_decoding_token_by_token_equals_whole_prefill(name, tiny_gguf):
    model, tokens = load_f32(tiny_gguf(name)), CASES[name].tokens()
    whole = _run(model, tokens)
    cache = init_cache(model.config, batch=1, length=len(tokens))
    for place, token in enumerate(tokens):
        ids, places = jnp.array([[token]], jnp.int32), jnp.array([[place]], jnp.int32)
        logits, cache = compiled_forward(model.params, model.config, ids, places, cache)
        np.testing.assert_allclose(np.array(logits[0, 0]), whole[place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_padding_and_other_rows_change_nothing(name, tiny_gguf):
    model, tokens = load_f32(tiny_gguf(name)), CASES[name].tokens()
    alone = _run(model, tokens[:25])
    ids = np.zeros((2, 40), np.int32)
    places = np.full((2, 40), -1, np.int32)
    ids[0, 9:34], places[0, 9:34] = tokens[:25], np.arange(25)
    ids[1], places[1] = tokens[::-1], np.arange(40)
    logits, _ = compiled_forward(model.params, model.config, jnp.array(ids), jnp.array(places), None)
    np.testing.assert_allclose(np.array(logits[0, 9:34]), alone, rtol=0, atol=1e-4)


def test_longrope_factors_follow_the_context_window(tmp_path, tiny_golden):
    """Long factors when the window exceeds the original context, whatever the length of the text."""
    case = CASES["phi3-longrope"]
    extra = {**case.extra, "rope.scaling.original_context_length": 256}
    path = write_tiny(replace(case, extra=extra), tmp_path / "longrope.gguf")
    _assert_golden(_run(load_f32(path), case.tokens()), tiny_golden, "phi3-longrope")
    _assert_golden(_run(load_f32(path, n_ctx=256), case.tokens()), tiny_golden, "phi3-longrope-short")
