"""Native attention against its definition in float64, and what becomes of the cache."""

import ctypes
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.models.cache import KVCache
from minfer_jax.native import library
from tests.native.attention import (
    LAYER,
    LAYERS,
    Sizes,
    Tokens,
    angles,
    defined,
    native,
    norms,
    placed,
    random_cache,
    random_tokens,
    traced,
    written,
)
from tests.native.built import needs_library

pytestmark = needs_library

MODELS = {
    "smollm2": Sizes(9, 3, 64),
    "qwen2": Sizes(14, 2, 64),
    "gemma3": Sizes(4, 1, 256, norms=True),
    "gemma2": Sizes(4, 2, 128, softcap=5.0),
    "phi3": Sizes(2, 2, 96, half=24),
    "dim 80": Sizes(8, 2, 80, norms=True),
    "dim 17": Sizes(6, 2, 17, half=3, softcap=2.0),
    "dim 1": Sizes(2, 1, 1),
    "many heads": Sizes(56, 1, 4),
}


@pytest.fixture(params=["portable", "avx2", "avxvnni", "avx512"])
def instructions(request):
    """Each instruction set that there is here, in use."""
    lib = library()
    lib.minfer_kernels.restype = ctypes.c_char_p
    best = lib.minfer_kernels()
    if not lib.minfer_use_kernels(request.param.encode()):
        pytest.skip(f"no {request.param} here")
    yield
    lib.minfer_use_kernels(best)


def ragged() -> np.ndarray:
    """Positions [4, 40]: from the start, from the middle, padded on both sides, with a gap; the last two end early."""
    positions = np.full((4, 40), -1)
    positions[0] = np.arange(40)
    positions[1] = np.arange(40) + 25
    positions[2, 3:30] = np.arange(27)
    positions[3, :9] = np.r_[2:6, 40:45]
    return positions


@pytest.mark.parametrize("window", [0, 1, 7])
@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
def test_with_a_cache(instructions, sizes: Sizes, window: int):
    tokens, cache = random_tokens(sizes, ragged()), random_cache(sizes, 4, 70)
    out, after = native(sizes, tokens, cache, window)
    keys, values = written(sizes, tokens, cache)
    np.testing.assert_allclose(after.k[LAYER], keys, atol=2e-6, rtol=1e-6)
    np.testing.assert_array_equal(after.v[LAYER], values.astype(np.float32))
    np.testing.assert_array_equal(after.k[1 - LAYER], cache.k[1 - LAYER])
    np.testing.assert_array_equal(after.v[1 - LAYER], cache.v[1 - LAYER])
    slots = np.broadcast_to(np.arange(70), (4, 70))
    np.testing.assert_allclose(out, defined(sizes, tokens, keys, values, slots, window), atol=5e-6)


@pytest.mark.parametrize("window", [0, 7])
@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
def test_without_a_cache(instructions, sizes: Sizes, window: int):
    tokens = random_tokens(sizes, ragged())
    out, none = native(sizes, tokens, None, window)
    assert none is None
    keys = placed(sizes, tokens.k, norms(sizes)[1], tokens.positions).swapaxes(1, 2)
    values = tokens.v.astype(np.float64).swapaxes(1, 2)
    np.testing.assert_allclose(out, defined(sizes, tokens, keys, values, tokens.positions, window), atol=5e-6)


@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
def test_a_bfloat16_cache_is_attended_as_it_is_stored(instructions, sizes: Sizes):
    tokens, cache = random_tokens(sizes, ragged()), random_cache(sizes, 4, 70, jnp.bfloat16)
    out, after = native(sizes, tokens, cache)
    keys, values = written(sizes, tokens, cache)
    np.testing.assert_allclose(np.asarray(after.k[LAYER]).astype(np.float64), keys, rtol=2**-8, atol=1e-6)
    np.testing.assert_array_equal(after.v[LAYER], jnp.asarray(values, jnp.float32).astype(jnp.bfloat16))
    stored = (np.asarray(x[LAYER]).astype(np.float64) for x in (after.k, after.v))
    slots = np.broadcast_to(np.arange(70), (4, 70))
    np.testing.assert_allclose(out, defined(sizes, tokens, *stored, slots), atol=5e-6)


def test_one_token_at_the_end_of_a_long_cache():
    sizes = Sizes(6, 2, 64)
    tokens, cache = random_tokens(sizes, np.array([[2999]])), random_cache(sizes, 1, 3000)
    out, _ = native(sizes, tokens, cache)
    slots = np.arange(3000)[None]
    np.testing.assert_allclose(out, defined(sizes, tokens, *written(sizes, tokens, cache), slots), atol=2e-6)


def test_scores_of_any_size():
    sizes = Sizes(sharpness=1e3)
    tokens, cache = random_tokens(sizes, np.arange(50)[None]), random_cache(sizes, 1, 50)
    out, after = native(sizes, tokens, cache)
    stored = (np.asarray(x[LAYER], np.float64) for x in (after.k, after.v))
    np.testing.assert_allclose(out, defined(sizes, tokens, *stored, np.arange(50)[None]), atol=2e-3)


def test_positions_at_or_beyond_the_length_are_not_written():
    sizes = Sizes()
    tokens, cache = random_tokens(sizes, np.array([[7, 8, 9, 2**31 - 1]])), random_cache(sizes, 1, 8)
    out, after = native(sizes, tokens, cache)
    np.testing.assert_array_equal(after.k[LAYER, :, :, :7], cache.k[LAYER, :, :, :7])
    np.testing.assert_array_equal(after.v[LAYER, 0, :, 7], tokens.v[0, 0])
    stored = (np.asarray(x[LAYER], np.float64) for x in (after.k, after.v))
    np.testing.assert_allclose(out, defined(sizes, tokens, *stored, np.arange(8)[None]), atol=5e-6)
    out, _ = native(sizes, tokens, cache, window=1)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
@pytest.mark.parametrize("length", [0, 20])
def test_no_tokens(shape: tuple[int, int], length: int):
    sizes = Sizes()
    cache = random_cache(sizes, shape[0], length) if length else None
    out, after = native(sizes, random_tokens(sizes, np.zeros(shape)), cache)
    assert out.shape == (*shape, sizes.heads, sizes.dim)
    if length:
        np.testing.assert_array_equal(after.k, cache.k)


def test_padding_is_zeros():
    sizes = Sizes()
    tokens = random_tokens(sizes, ragged())
    for cache in None, random_cache(sizes, 4, 70):
        out, _ = native(sizes, tokens, cache)
        np.testing.assert_array_equal(out[tokens.positions < 0], 0)


def decode(sizes: Sizes, tokens: Tokens, cos, sin, cache: KVCache, steps):
    """As runtime/decode.py over models/forward.py: layers in a scan and one after it, steps in a while loop."""

    def layer(carry, index):
        q, cache = carry
        out, cache = traced(sizes, tokens._replace(q=q), cos, sin, jnp.int32(0), cache, index)
        return (out.reshape(q.shape), cache), None

    def step(carry):
        i, q, cache = carry
        (q, cache), _ = jax.lax.scan(layer, (q, cache), jnp.arange(LAYERS - 1))
        (q, cache), _ = layer((q, cache), LAYERS - 1)
        return i + 1, q * 0.5, cache

    return jax.lax.while_loop(lambda carry: carry[0] < steps, step, (jnp.int32(0), tokens.q, cache))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decode_loop_copies_no_cache(dtype: str):
    sizes = Sizes()
    tokens, cache = random_tokens(sizes, np.array([[100], [3]])), random_cache(sizes, 2, 128, dtype)
    loop = jax.jit(decode, static_argnames="sizes", donate_argnames="cache")
    program = loop.lower(sizes, tokens, *angles(sizes, tokens.positions), cache, np.int32(3)).compile()
    shape = ",".join(map(str, cache.k.shape))
    makers = set(re.findall(rf"= \w+\[{shape}\]\S* ([\w-]+)\(", program.as_text()))
    assert makers <= {"parameter", "get-tuple-element"}
    assert "custom-call" in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < cache.k[0].nbytes


def test_layers_that_are_not_there():
    sizes = Sizes()
    tokens, cache = random_tokens(sizes, np.array([[0]])), random_cache(sizes, 1, 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match="layer 2 of a cache of 2"):
        jax.block_until_ready(traced(sizes, tokens, *angles(sizes, tokens.positions), np.int32(0), cache, LAYERS))


def test_shapes_that_do_not_fit():
    sizes = Sizes()
    tokens, cache = random_tokens(sizes, np.array([[0]])), random_cache(sizes, 2, 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"a cache is two arrays, .* \[L, B, KV, S, D\]"):
        native(sizes, tokens, cache)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"until is int32 \[0\], or \[B, T\] without a cache"):
        native(sizes, tokens, random_cache(sizes, 1, 8), until=np.ones((1, 1), np.int32))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"cos and sin are float32 \[B, T, half\]"):
        native(Sizes(half=9), tokens)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"positions are int32 \[B, T\]"):
        traced(
            sizes, tokens._replace(positions=tokens.positions[0]), *angles(sizes, tokens.positions), np.int32(0), None
        )
