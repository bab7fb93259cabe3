"""Native sums along rows: right by float64, and the same bits in whatever company; and calls that are wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.models.native_rows import add_exp, rms_norm

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


def log_sum_exp(*chunks: np.ndarray) -> np.ndarray:
    """Of chunks [N, k] of the same rows."""
    sums = np.full(len(chunks[0]), -np.inf, np.float32), np.zeros(len(chunks[0]), np.float32), None
    for chunk in chunks:
        sums = add_exp(jnp.asarray(chunk), *sums[:2])
    return np.asarray(sums[0]) + np.asarray(sums[2])


@pytest.mark.parametrize("k", LENGTHS)
def test_add_exp(k: int):
    first, second = rows(9, k), rows(9, k + 7)
    first[1, k // 2] = -np.inf  # a row of padding of the vocabulary
    second[2] += 50  # the peak moves
    wide = np.concatenate([first, second], 1).astype(np.float64)
    expected = np.log(np.exp(wide).sum(-1))
    np.testing.assert_allclose(log_sum_exp(first, second), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", LENGTHS)
def test_any_number_of_rows(k: int):
    x, weight = rows(100, k), rows(1, k)[0]
    normed, sums = rms_norm(x, weight, 1e-5), log_sum_exp(x, x[:, ::-1] + 1)
    for n in (*range(1, 18), 33):
        np.testing.assert_array_equal(rms_norm(x[None, -n:], weight, 1e-5)[0], normed[-n:])
        np.testing.assert_array_equal(log_sum_exp(x[-n:], x[-n:, ::-1] + 1), sums[-n:])


def test_not_a_number_stays_in_its_row():
    x = rows(3, 40)
    x[1, 39] = np.nan
    assert np.isnan(rms_norm(x, np.ones(40, np.float32), 1e-5)).all(1).tolist() == [False, True, False]
    assert np.isnan(log_sum_exp(x)).tolist() == [False, True, False]


def test_wrong_shapes():
    with pytest.raises(jax.errors.JaxRuntimeError, match="minfer_rms_norm: x and the result"):
        jax.block_until_ready(rms_norm(jnp.ones((2, 8)), jnp.ones(5), 1e-5))
    with pytest.raises(jax.errors.JaxRuntimeError, match="minfer_add_exp: x is"):
        jax.block_until_ready(add_exp(jnp.ones((2, 8)), jnp.ones(3), jnp.ones(3)))
