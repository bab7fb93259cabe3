"""Shapes, dtypes and traces of every public array function, with and without jit."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import minfer_jax as mj
from minfer_jax.gguf import RawTensor
from minfer_jax.models import attention, blocks, logits, rope
from minfer_jax.models.linear import rms_norm
from minfer_jax.quant import to_tensor
from tests.native.built import needs_library

B, T = 2, 5


@pytest.fixture(scope="module")
def dense(tiny_gguf):
    return mj.load(tiny_gguf("gemma3"), implementation="dense")  # windows, two rope tables, QK-norm, post-norms


@pytest.fixture(scope="module")
def native(tiny_gguf):
    return mj.load(tiny_gguf("gemma3"), implementation="ffi")


@pytest.fixture(params=["dense", pytest.param("native", marks=needs_library)])
def model(request):
    return request.getfixturevalue(request.param)


def batch():
    tokens = jnp.arange(B * T, dtype=jnp.int32).reshape(B, T)
    positions = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), tokens.shape)
    return tokens, positions


class PublicFunctionTest(chex.TestCase):
    """Each function twice: inside jit and outside."""

    @pytest.fixture(autouse=True)
    def _model(self, dense):
        self.params, self.config = dense.params, dense.config

    def arguments(self, cached):
        cache = mj.init_cache(self.config, B, 16) if cached else None
        return (self.params, self.config, *batch(), cache)

    @chex.variants(with_jit=True, without_jit=True)
    def test_forward(self):
        for cached in (False, True):
            arguments = self.arguments(cached)
            out, after = self.variant(mj.forward, static_argnums=1)(*arguments)
            chex.assert_shape(out, (B, T, self.config.vocab_size))
            chex.assert_type(out, jnp.float32)
            chex.assert_tree_all_finite(out)
            if cached:
                chex.assert_trees_all_equal_shapes_and_dtypes(arguments[-1], after)
            else:
                assert after is None

    @chex.variants(with_jit=True, without_jit=True)
    def test_forward_with_tail_rows_equals_those_rows(self):
        """The tail-row reduction gives the rows of the full computation."""
        tail = jnp.array([4, 9, 2], jnp.int32)
        for cached in (False, True):
            full, _ = jax.jit(mj.forward, static_argnums=1)(*self.arguments(cached))
            out, _ = self.variant(mj.forward, static_argnums=1)(*self.arguments(cached), tail)
            chex.assert_shape(out, (3, self.config.vocab_size))
            np.testing.assert_allclose(out, full.reshape(B * T, -1)[tail], atol=2e-4)

    @chex.variants(with_jit=True, without_jit=True)
    def test_hidden_states_and_logits(self):
        hidden, _ = self.variant(mj.hidden_states, static_argnums=1)(*self.arguments(False))
        chex.assert_shape(hidden, (B, T, self.config.d_model))
        out = self.variant(logits, static_argnums=1)(self.params, self.config, hidden)
        np.testing.assert_allclose(out, mj.forward(*self.arguments(False))[0], atol=2e-4)

    @chex.variants(with_jit=True, without_jit=True)
    def test_token_logprobs_equal_log_softmax(self):
        hidden = mj.hidden_states(*self.arguments(False))[0].reshape(B * T, -1)
        targets = jnp.arange(B * T, dtype=jnp.int32) * 7
        run = self.variant(mj.token_logprobs, static_argnums=1)
        logprob, greedy = run(self.params, self.config, hidden, targets)
        chex.assert_shape((logprob, greedy), (B * T,))
        chex.assert_type((logprob, greedy), (jnp.float32, jnp.int32))
        z = np.asarray(logits(self.params, self.config, hidden)).astype(np.float64)
        oracle = z - np.log(np.exp(z).sum(-1, keepdims=True))
        np.testing.assert_allclose(logprob, oracle[np.arange(B * T), targets], atol=1e-4)
        np.testing.assert_array_equal(greedy, z.argmax(-1))

    @chex.variants(with_jit=True, without_jit=True)
    def test_blocks(self):
        config, layer = self.config, self.params.runs[0].at(0)
        positions = batch()[1]
        x = jax.random.normal(jax.random.key(0), (B, T, config.d_model))
        cos, sin = self.variant(rope.angles)(self.params.rope_freqs, positions, 1.0)
        chex.assert_shape((cos, sin), (len(config.rope.bases), B, T, config.rope.dim // 2))
        q, k, v = self.variant(blocks.project_qkv, static_argnums=1)(layer, config, x)
        chex.assert_shape(q, (B, T, config.n_heads, config.head_dim))
        chex.assert_shape((k, v), (B, T, config.n_kv_heads, config.head_dim))
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        attend = self.variant(attention.attention, static_argnums=0)
        out = attend(config, q, k, v, positions, positions, jnp.int32(0))
        chex.assert_shape(out, (B, T, config.n_heads * config.head_dim))
        ffn = self.variant(blocks.feed_forward, static_argnums=1)
        chex.assert_shape(ffn(layer, config, x), x.shape)
        chex.assert_shape(self.variant(rms_norm)(x, layer.attn_norm, 1e-6), x.shape)
        chex.assert_shape(self.variant(mj.matmul)(x, layer.gate), (B, T, config.d_ff))
        cache = self.variant(mj.init_cache, static_argnums=(0, 1, 2))(config, B, 16)
        chex.assert_shape((cache.k, cache.v), (config.n_layers, B, config.n_kv_heads, 16, config.head_dim))


@needs_library
class NativeFunctionTest(PublicFunctionTest):
    """The same with native kernels."""

    @pytest.fixture(autouse=True)
    def _model(self, native):
        self.params, self.config = native.params, native.config


def params_of_head(weight: np.ndarray, implementation: str) -> mj.Params:
    part = RawTensor("w", GGMLQuantizationType.F32, weight.shape, weight.view(np.uint8))
    return mj.Params(to_tensor(part, implementation, "float32"), (), jnp.ones(8), None, jnp.ones((1, 1)))


HEADS = pytest.mark.parametrize("implementation", ["dense", pytest.param("ffi", marks=needs_library)])


@HEADS
@pytest.mark.parametrize("vocab", [1, 37, 8192, 8193, 20000])
def test_token_logprobs_over_several_chunks(dense, vocab, implementation):
    """Vocabularies below, at and above the chunk; the first, the last and ties included; padding of tiles is not."""
    rng = np.random.default_rng(vocab)
    weight = rng.normal(size=(vocab, 8)).astype(np.float32)
    weight[vocab // 2] = weight[-1]  # a tie: the lowest id is the greedy one
    hidden = np.concatenate([3 * weight[-1:], rng.normal(size=(5, 8))]).astype(np.float32)
    targets = np.array([vocab - 1, 0, vocab // 2, vocab // 3, vocab - 1, 0], np.int32)
    params = params_of_head(weight, implementation)
    logprob, greedy = mj.token_logprobs(params, dense.config, jnp.asarray(hidden), jnp.asarray(targets))
    z = hidden.astype(np.float64) @ weight.T.astype(np.float64)
    peak = z.max(-1, keepdims=True)
    oracle = z - peak - np.log(np.exp(z - peak).sum(-1, keepdims=True))
    np.testing.assert_allclose(logprob, oracle[np.arange(6), targets], atol=1e-4, rtol=1e-5)
    tied = np.isclose(z, peak, atol=1e-9).argmax(-1)
    np.testing.assert_array_equal(greedy, tied)


@HEADS
def test_token_logprobs_of_what_cannot_be(dense, implementation):
    """A first chunk of minus infinity; ids in the padding of a tile, which are no tokens."""
    weight = np.ones((8195, 8), np.float32)
    weight[:8192] = -3e38
    targets = jnp.array([8194, 0, 8195, 8200])
    logprob, greedy = mj.token_logprobs(params_of_head(weight, implementation), dense.config, jnp.ones((4, 8)), targets)
    np.testing.assert_allclose(logprob, [-np.log(3), -np.inf, -np.inf, -np.inf], rtol=1e-6)
    np.testing.assert_array_equal(greedy, 8192)


def test_attention_equals_float64(dense, monkeypatch):
    """Grouped heads, window, padding keys and the query chunks, against a plain numpy attention."""
    config = dense.config
    monkeypatch.setattr(attention, "_MOST_SCORES", 128 * 1024 * config.n_heads)  # eight chunks of queries
    H, G, D, S = config.n_heads, config.n_kv_heads, config.head_dim, 1024
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, S, n, D)).astype(np.float32) for n in (H, G, G))
    positions = np.arange(S, dtype=np.int32)[None]
    keys = np.where(np.arange(S) % 10 == 9, -1, np.arange(S)).astype(np.int32)[None]
    for window in (0, 100):
        run = partial(attention.attention, config)
        out = run(q, k.swapaxes(1, 2), v.swapaxes(1, 2), positions, keys, jnp.int32(window))
        for h in range(H):
            scores = q[0, :, h].astype(np.float64) @ k[0, :, h // (H // G)].T * config.attention_scale
            back = positions[0][:, None] - keys[0]
            scores[(back < 0) | (keys[0] < 0) | ((back >= window) & (window > 0))] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            np.testing.assert_allclose(out[0, :, h * D : (h + 1) * D], weights @ v[0, :, h // (H // G)], atol=1e-5)


@pytest.mark.parametrize(
    ("n", "per_query", "chunk"),
    [(512, 2**16, 512), (768, 2**16, 256), (1024, 2**16, 512), (1, 2**30, 1), (24, 2**22, 8), (7, 2**24, 1), (0, 0, 0)],
)
def test_query_chunks_divide_and_fit(n, per_query, chunk):
    assert attention._query_chunk(n, per_query) == chunk
    assert chunk * per_query <= 2**25 or chunk == 1


def test_a_bfloat16_cache(model):
    """Half the memory; keys and values are rounded to 8 bits of mantissa, everything else stays float32."""
    exact, _ = mj.forward(model.params, model.config, *batch())
    cache = mj.init_cache(model.config, B, 16, jnp.bfloat16)
    out, after = mj.forward(model.params, model.config, *batch(), cache)
    chex.assert_type((after.k, after.v), jnp.bfloat16)
    chex.assert_type(out, jnp.float32)
    spread = float(jnp.abs(exact).max())
    assert 0 < float(jnp.abs(out - exact).max()) < 0.03 * spread
    with pytest.raises(mj.ArgumentError, match="float16; choose float32 or bfloat16"):
        mj.init_cache(model.config, B, 16, jnp.float16)
    with pytest.raises(mj.ArgumentError, match="int9; choose float32 or bfloat16"):
        mj.init_cache(model.config, B, 16, "int9")
    assert mj.init_cache(model.config, B, 16, "bfloat16").k.dtype == jnp.bfloat16


@pytest.mark.parametrize("sizes", [(0, 8), (1, 0), (1, -1), (1, 8.5), (True, 8)])
def test_a_cache_of_no_size(model, sizes):
    with pytest.raises(mj.ArgumentError, match="(batch|length) is .*; give an integer of at least 1"):
        mj.init_cache(model.config, *sizes)


@pytest.mark.parametrize("shape", [(1, 0), (0, 4)])
def test_no_tokens(model, shape):
    none = jnp.zeros(shape, jnp.int32)
    with pytest.raises(mj.ArgumentError, match=r"tokens is \[\d, \d\]; there has to be one at least"):
        mj.forward(model.params, model.config, none, none)


def test_a_cache_or_config_of_another_model(model):
    other = replace(model.config, n_kv_heads=model.config.n_kv_heads + 1)
    with pytest.raises(AssertionError):
        mj.forward(model.params, model.config, *batch(), mj.init_cache(other, B, 16))
    with pytest.raises(AssertionError):
        mj.forward(model.params, replace(model.config, d_model=2 * model.config.d_model), *batch())


def test_wrong_shapes_are_refused(model):
    tokens, positions = batch()
    with pytest.raises(AssertionError):
        mj.forward(model.params, model.config, tokens[0], positions[0])
    with pytest.raises(AssertionError):
        mj.forward(model.params, model.config, tokens, positions[:, :2])
    with pytest.raises(AssertionError):
        mj.forward(model.params, model.config, tokens, positions, mj.init_cache(model.config, B + 1, 16))
    with pytest.raises(mj.ArgumentError, match="5 tokens do not fit a cache of 4 positions"):
        mj.forward(model.params, model.config, tokens, positions, mj.init_cache(model.config, B, 4))


def test_positions_are_data(model):
    """One executable serves every position."""
    chex.clear_trace_counter()
    step = jax.jit(chex.assert_max_traces(lambda *arguments: mj.forward(*arguments), n=1), static_argnums=1)
    cache = mj.init_cache(model.config, 1, 16)
    for place in (0, 1, 15):
        step(model.params, model.config, jnp.array([[3]]), jnp.array([[place]]), cache)


def test_calls_outside_jit_compile_once(model):
    """Called by hand in a loop, nothing is traced or compiled again."""
    tokens, positions = batch()
    mj.forward(model.params, model.config, tokens, positions)
    before = mj.forward._cache_size()
    for shift in range(3):
        hidden, _ = mj.hidden_states(model.params, model.config, tokens + shift, positions)
        mj.forward(model.params, model.config, tokens + shift, positions)
        mj.token_logprobs(model.params, model.config, hidden.reshape(B * T, -1), tokens.reshape(-1))
    assert mj.forward._cache_size() == before


def test_x64_mode_changes_nothing(model):
    """The dtypes are ours, whatever jax_enable_x64 makes of Python numbers."""
    tokens, positions = batch()
    expected = mj.forward(model.params, model.config, tokens, positions)[0]
    with jax.enable_x64(True):
        cache = mj.init_cache(model.config, B, 8)
        out, cache = mj.forward(model.params, model.config, tokens, positions, cache)
        hidden, _ = mj.hidden_states(model.params, model.config, tokens, positions)
        logprob, greedy = mj.token_logprobs(model.params, model.config, hidden[0], tokens[0])
    chex.assert_type((out, cache.k, logprob, greedy), (jnp.float32, jnp.float32, jnp.float32, jnp.int32))
    np.testing.assert_allclose(out, expected, atol=2e-4)
