"""Native sums along rows: right by float64, and the same bits in whatever company; and calls that are wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.models.native_rows import add_logits, rms_norm

pytestmark = pytest.mark.usefixtures("kernels")

LENGTHS = (1, 15, 16, 40, 576, 8195)


def rows(n: int, k: int, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(k).normal(size=(n, k), scale=scale).astype(np.float32)


@pytest.mark.parametrize("k", LENGTHS)
def test_rms_norm(k: int):
    x, weight = rows(9, k), rows(1, k)[0]
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(rms_norm(x, weight, 1e-5), expected, rtol=2e-6)


def running(*chunks: np.ndarray, around: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(log-sum-exp, argmax) of chunks [N, k] of the same rows; around: columns on both sides that are no logits."""
    n = len(chunks[0])
    sums = np.full(n, -np.inf, np.float32), np.zeros(n, np.float32), None, np.zeros(n, np.int32)
    first = 0
    for chunk in chunks:
        k = chunk.shape[1]
        wide = np.pad(chunk, ((0, 0), (around, around)), constant_values=np.inf)
        sums = add_logits(jnp.asarray(wide), sums, (around, around + k, first))
        first += k
    peak, _, log_total, best = map(np.asarray, sums)
    return peak + log_total, best


@pytest.mark.parametrize("k", LENGTHS)
def test_add_logits(k: int):
    first, second = rows(9, k), rows(9, k + 7)
    first[1, k // 2] = -np.inf
    second[2] += 50  # the peak moves
    first[3, [k // 3, k - 1]] = second[3, 5] = 70  # the first of equals
    second[4, [5, k + 6]] = 70
    wide = np.concatenate([first, second], 1).astype(np.float64)
    for around in (0, 3, 16):
        sums, best = running(first, second, around=around)
        np.testing.assert_allclose(sums, np.log(np.exp(wide).sum(-1)), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(best, wide.argmax(-1))


@pytest.mark.parametrize("k", LENGTHS)
def test_any_number_of_rows(k: int):
    x, weight = rows(100, k), rows(1, k)[0]
    normed, (sums, best) = rms_norm(x, weight, 1e-5), running(x, x[:, ::-1] + 1)
    for n in (*range(1, 18), 33):
        np.testing.assert_array_equal(rms_norm(x[None, -n:], weight, 1e-5)[0], normed[-n:])
        few, first = running(x[-n:], x[-n:, ::-1] + 1)
        np.testing.assert_array_equal(few, sums[-n:])
        np.testing.assert_array_equal(first, best[-n:])


def test_not_a_number_stays_in_its_row():
    x = rows(3, 40)
    x[1, 39] = np.nan
    assert np.isnan(rms_norm(x, np.ones(40, np.float32), 1e-5)).all(1).tolist() == [False, True, False]
    sums, best = running(x)
    assert np.isnan(sums).tolist() == [False, True, False]
    np.testing.assert_array_equal(best, np.nanargmax(x, -1))


def test_wrong_shapes():
    with pytest.raises(jax.errors.JaxRuntimeError, match="minfer_rms_norm: x and the result"):
        jax.block_until_ready(rms_norm(jnp.ones((2, 8)), jnp.ones(5), 1e-5))
    for count, span, words in (
        (3, (0, 8, 0), "minfer_add_logits: z is"),
        (2, (-1, 8, 0), "span is not within"),
        (2, (0, 9, 0), "span is not within"),
        (2, (5, 4, 0), "span is not within"),
    ):
        sums = jnp.ones(2), jnp.ones(count), jnp.ones(2), jnp.ones(2, jnp.int32)
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            jax.block_until_ready(add_logits(jnp.ones((2, 8)), sums, span))
