"""The kernel's arithmetic, as jax.numpy has it, against float64 products of the exact weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quantised_matmul import FORMATS, Layout, pack, reference, twin
from tests.pallas_kernels.matrices import exact_product, relative_error, sane_matrix


@pytest.mark.parametrize("blocks", [1, 7, 20])
@pytest.mark.parametrize("name", FORMATS)
def test_products(name, blocks):
    layout, fields = sane_matrix(name, 24, blocks, seed=blocks)
    packed = pack(layout, fields)
    x = np.random.default_rng(0).normal(size=(3, layout.columns)).astype(np.float32)
    right = exact_product(layout, packed, x)
    assert relative_error(twin.quantised_matmul(layout, packed, x), right) < 8e-5
    assert relative_error(reference.quantised_matmul(layout, packed, jnp.asarray(x)), right) < 1e-6


def test_integers_are_exact():
    """With x of few bits and weights of scale 1 nothing is rounded, in any order of sums."""
    layout = Layout("Q8_0", 16, 4864)
    fields = sane_matrix("Q8_0", 16, 4864 // 32, seed=0)[1]
    fields = type(fields)(fields.codes, np.ones_like(fields.d))
    packed = pack(layout, fields)
    x = np.random.default_rng(1).integers(-16, 16, (2, 4864)).astype(np.float32)
    np.testing.assert_array_equal(twin.quantised_matmul(layout, packed, x), exact_product(layout, packed, x))


def test_rounding_of_x():
    x = np.random.default_rng(2).normal(size=(4, 256)).astype(np.float32) * 10.0 ** np.arange(-6, 6, 3)[:, None]
    integers, scale = twin.quantise(jnp.asarray(x, jnp.float32))
    values = np.asarray(integers, np.float64).reshape(4, 8, 32) * np.asarray(scale, np.float64)[..., None]
    greatest = np.abs(x).reshape(4, 8, 32).max(-1)
    assert (np.abs(values - x.reshape(4, 8, 32)).max(-1) <= greatest * 2.0**-15).all()
    assert (np.frexp(np.asarray(scale))[0] == 0.5).all()
    assert np.abs(integers).max() <= 32768


def test_rows_that_are_not_finite():
    """NaN and infinities make NaN of their own row; zeros give zeros."""
    layout, fields = sane_matrix("Q4_0", 16, 4, seed=3)
    x = np.ones((4, 128), np.float32)
    x[0, 5], x[1, 77], x[2] = np.nan, np.inf, 0
    y = np.asarray(jax.jit(lambda p, x: twin.quantised_matmul(layout, p, x))(pack(layout, fields), x))
    assert np.isnan(y[:2]).all() and (y[2] == 0).all() and np.isfinite(y[3]).all()
