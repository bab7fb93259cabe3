"""Native attention gives a token the same bits in whatever company it is computed, and lets no stray NaN in."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer_jax.models.cache import KVCache
from tests.native.attention import LAYER, Sizes, Tokens, native, random_cache, random_tokens
from tests.native.built import needs_library

pytestmark = needs_library

LONGEST = 70
SIZES = [Sizes(6, 2, 32, norms=True), Sizes(4, 4, 20, softcap=3.0), Sizes(5, 1, 16, half=5), Sizes(7, 1, 64)]


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def empty_cache(sizes: Sizes, rows: int, length: int, dtype=jnp.float32) -> KVCache:
    """Of garbage that would be seen if it were used."""
    fill = jnp.full((2, rows, sizes.kv_heads, length, sizes.dim), jnp.nan, dtype)
    return KVCache(fill, fill.at[:, :, :, ::2].set(jnp.inf))


def alone(sizes: Sizes, tokens: Tokens, window: int, dtype) -> np.ndarray:
    """The whole text at once, in a cache that it fills."""
    return native(sizes, tokens, empty_cache(sizes, 1, tokens.positions.size, dtype), window)[0][0]


lengths = st.integers(1, LONGEST)
texts = st.tuples(st.sampled_from(SIZES), lengths, st.sampled_from([0, 1, 5, 33]))
dtypes = st.sampled_from([jnp.float32, jnp.bfloat16])


@settings(max_examples=25, deadline=None)
@given(texts, dtypes, st.data())
def test_chunks_and_the_length_of_the_cache(text, dtype, data):
    sizes, n, window = text
    tokens = random_tokens(sizes, np.arange(n)[None])
    expected = alone(sizes, tokens, window, dtype)
    ends = sorted(data.draw(st.sets(st.integers(1, n))) | {n})
    cache = empty_cache(sizes, 1, data.draw(st.integers(n, 2 * LONGEST)), dtype)
    for begin, end in pairwise([0, *ends]):
        out, cache = native(sizes, tokens.of(slice(None), slice(begin, end)), cache, window)
        same(out[0], expected[begin:end])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("sizes", SIZES)
def test_one_token_at_a_time(sizes, dtype):
    tokens = random_tokens(sizes, np.arange(LONGEST)[None])
    expected, cache = alone(sizes, tokens, 40, dtype), empty_cache(sizes, 1, 99, dtype)
    for t in range(LONGEST):
        out, cache = native(sizes, tokens.of(slice(None), slice(t, t + 1)), cache, 40)
        same(out[0], expected[t : t + 1])


@settings(max_examples=25, deadline=None)
@given(texts, st.booleans(), st.data())
def test_company_and_padding(text, cached, data):
    """A text in one row of a batch, padded on both sides. Without a cache a shift turns the lanes in which a query's
    weights are summed, and halves of the lanes are added: that tree is the same however they are turned."""
    sizes, n, window = text
    tokens = random_tokens(sizes, np.arange(n)[None])
    expected = alone(sizes, tokens, window, jnp.float32)
    rows, row = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    left, right = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 40))
    positions = np.full((rows, left + n + right), -1)
    for other in positions:
        length, start = data.draw(st.integers(0, left + n + right)), data.draw(st.integers(0, LONGEST))
        other[:length] = np.arange(length) + start
    row %= rows
    positions[row] = np.r_[[-1] * left, np.arange(n), [-1] * right]
    batch = random_tokens(sizes, positions, seed=1)
    for all, own in zip(batch[:3], tokens, strict=False):
        all[positions < 0] = np.nan
        all[row, left : left + n] = own[0]
    cache = empty_cache(sizes, rows, 2 * LONGEST + 100) if cached else None
    out, _ = native(sizes, batch, cache, window)
    same(out[row, left : left + n], expected)
    assert np.isfinite(out[positions < 0]).all()


def test_more_queries_than_attend_together():
    sizes = Sizes(3, 1, 16)
    tokens = random_tokens(sizes, np.arange(200)[None])
    cache = empty_cache(sizes, 1, 200)
    expected = []
    for t in range(200):
        out, cache = native(sizes, tokens.of(slice(None), slice(t, t + 1)), cache)
        expected.append(out[0])
    same(native(sizes, tokens)[0][0], np.concatenate(expected))


@settings(max_examples=25, deadline=None)
@given(texts, st.data())
def test_texts_that_share_a_prefix(text, data):
    """A row of texts that branch off the first one, each a multiple of 16 places behind its positions."""
    sizes, n, window = text
    trunk = random_tokens(sizes, np.arange(n)[None])
    tails = data.draw(st.lists(st.tuples(st.integers(0, n), st.integers(1, 40)), max_size=4))
    width = n + sum(length + 16 for _, length in tails)
    positions, until = np.full((1, width), -1), np.full((1, width), width, np.int32)
    row = random_tokens(sizes, positions, seed=1)
    for all in row[:3]:
        all[...] = np.nan

    def write(start: int, tokens: Tokens, at: slice) -> None:
        for all, own in zip(row, tokens, strict=True):
            all[:, start : start + own[:, at].shape[1]] = own[:, at]

    write(0, trunk, slice(None))
    wanted, end = [(0, alone(sizes, trunk, window, jnp.float32))], n
    path = np.arange(n)
    for seed, (shared, length) in enumerate(tails, 2):
        shared = min(shared, len(path))
        start = end + (shared - end) % 16
        new = random_tokens(sizes, np.arange(shared, shared + length)[None], seed)
        whole = Tokens(*(np.concatenate([r[:, path[:shared]], x], 1) for r, x in zip(row, new, strict=True)))
        until[0, path[shared:]] = start
        write(start, new, slice(None))
        path, end = np.concatenate([path[:shared], np.arange(start, start + length)]), start + length
        wanted.append((start, alone(sizes, whole, window, jnp.float32)[shared:]))
    out = native(sizes, row, None, window, until)[0][0]
    for start, expected in wanted:
        same(out[start : start + len(expected)], expected)


def digest() -> str:
    """Of outputs and caches of many shapes."""
    hashed = hashlib.sha256()
    for sizes in SIZES[:2]:
        for rows, n in ((1, 200), (3, 64), (5, 1)):
            tokens = random_tokens(sizes, np.tile(np.arange(n), (rows, 1)))
            for cache in None, random_cache(sizes, rows, 256), random_cache(sizes, rows, 256, jnp.bfloat16):
                out, after = native(sizes, tokens, cache, window=50)
                hashed.update(out.tobytes())
                if after is not None:
                    hashed.update(np.asarray(after.k).tobytes() + np.asarray(after.v).tobytes())
    return hashed.hexdigest()


def test_threads():
    """NPROC is how many threads XLA takes."""
    program = "from tests.native.test_attention_bits import digest; print(digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"NPROC": n}, check=True, capture_output=True, text=True
        ).stdout
        for n in ("1", "5")
    }
    assert digests == {digest() + "\n"}


def affected(sizes: Sizes, spoil, cached: bool, window: int = 0) -> np.ndarray:
    """Which outputs [T, heads, dim] of a text are NaN after spoil(tokens); the others keep their bits."""
    tokens = random_tokens(sizes, np.arange(LONGEST)[None])
    clean = alone(sizes, tokens, window, jnp.float32)
    spoil(tokens)
    out = native(sizes, tokens, empty_cache(sizes, 1, LONGEST) if cached else None, window)[0][0]
    same(out[~np.isnan(out)], clean[~np.isnan(out)])
    return np.isnan(out)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("sizes", [replace(sizes, norms=False) for sizes in SIZES])
def test_not_a_number(sizes: Sizes, cached: bool):
    """It spoils what it is part of, nothing less and nothing more: a query its own head, a key the queries that see it
    and share it, a value one dimension of those."""
    at, share = 37, sizes.heads // sizes.kv_heads
    expected = np.zeros((3, LONGEST, sizes.heads, sizes.dim), bool)
    expected[0, at, 1] = True
    expected[1, at : at + 20, :share] = True
    expected[2, at : at + 20, :share, 3] = True

    def spoil(array: int, head: int):
        return lambda tokens: tokens[array].__setitem__((0, at, head, 3), np.nan)

    for array, head in enumerate((1, 0, 0)):
        np.testing.assert_array_equal(affected(sizes, spoil(array, head), cached, window=20), expected[array])


def test_a_weight_of_zero_does_not_hide_it():
    sizes = Sizes(1, 1, 4, sharpness=1e4)
    tokens = random_tokens(sizes, np.arange(50)[None])
    out, _ = native(sizes, tokens)
    tokens.v[0, 10] = np.nan
    spoiled, _ = native(sizes, tokens)
    same(spoiled[0, :10], out[0, :10])
    assert np.isnan(spoiled[0, 10:]).all()


def test_infinity_is_no_number_either():
    sizes = Sizes(1, 1, 4)
    tokens = random_tokens(sizes, np.arange(50)[None])
    tokens.q[...] = 1
    tokens.k[0, 10] = np.inf
    out, _ = native(sizes, tokens)
    assert np.isfinite(out[0, :10]).all() and np.isnan(out[0, 10:]).all()


def test_rounding_to_bfloat16_keeps_nan():
    """A NaN of low bits alone would round to infinity."""
    sizes = Sizes(1, 1, 4, half=0)
    tokens = random_tokens(sizes, np.array([[0]]))
    tokens.k.view(np.uint32)[...] = 0x7F800001
    tokens.v.view(np.uint32)[...] = 0xFF800001
    _, cache = native(sizes, tokens, random_cache(sizes, 1, 8, jnp.bfloat16))
    assert np.isnan(cache.k[LAYER, 0, 0, 0].astype(np.float32)).all()
    assert np.isnan(cache.v[LAYER, 0, 0, 0].astype(np.float32)).all()
