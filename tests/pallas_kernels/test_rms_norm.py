"""RMSNorm: definition and kernel against float64, and bits that depend on the row alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import compat, rms_norm
from pallas_kernels.rms_norm import reference
from pallas_kernels.shapes import MODELS

VERSIONS = [pytest.param(rms_norm, marks=pytest.mark.gpu, id="kernel"), pytest.param(reference, id="definition")]
needs_lowering = pytest.mark.skipif(compat.why_not_lowerable() is not None, reason=str(compat.why_not_lowerable()))


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (9, 100), (300, 576), (17, 3584), (2, 18944)])
def test_it_is_right(version, rows, columns):
    x, weight = 100 * normal(rows, columns, seed=0), normal(columns, seed=1)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-3) * weight
    whole = jax.jit(partial(version.rms_norm, eps=1e-3))(x, weight)
    assert whole.dtype == jnp.float32
    np.testing.assert_allclose(whole, wanted, rtol=2e-6)
    half = jax.jit(partial(version.rms_norm, eps=1e-3, divisor=64.0, dtype=jnp.float16))(x, weight)
    assert half.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(half, np.float64) * 64, wanted, rtol=6e-4, atol=2.0**-18)


@pytest.mark.parametrize("version", VERSIONS)
def test_numbers_that_are_not_finite_are_not_hidden(version):
    x, weight = normal(4, 256, seed=0), np.ones(256, np.float32)
    x[1, 7], x[2, 9], weight[3] = np.nan, np.inf, 1e10
    half = np.asarray(version.rms_norm(x, weight, eps=1e-6, divisor=64.0, dtype=jnp.float16))
    assert np.isnan(half[1]).all() and np.isnan(half[2, 9]) and np.isinf(half[[0, 3], 3]).all()
    assert np.isfinite(half[[0, 3]][:, 4:]).all()


@pytest.mark.gpu
def test_bits_depend_on_the_row_alone():
    x, weight = normal(3000, 896, seed=0), normal(896, seed=1)
    whole = np.asarray(rms_norm.rms_norm(x, weight, eps=1e-6))
    for rows in ([0], [2999, 3], list(range(17)), list(range(1, 1025))):
        np.testing.assert_array_equal(rms_norm.rms_norm(x[rows], weight, eps=1e-6), whole[rows])


@needs_lowering
@pytest.mark.parametrize("name", MODELS)
def test_shapes_of_real_models_are_lowered(name):
    width = MODELS[name].width
    args = jax.ShapeDtypeStruct((300, width), jnp.float32), jax.ShapeDtypeStruct((width,), jnp.float32)
    traced = jax.jit(partial(rms_norm.rms_norm, eps=1e-6, divisor=64.0, dtype=jnp.float16)).trace(*args)
    assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_arguments():
    x, weight = normal(4, 64, seed=0), normal(64, seed=1)
    if compat.why_not_lowerable() is not None:
        with pytest.raises(RuntimeError, match="rms_norm is not available: jax"):
            rms_norm.rms_norm(x, weight, eps=1e-6)
        return
    with pytest.raises(ValueError, match=r"x is float32\[4, 64\], weight float32\[60\]"):
        rms_norm.rms_norm(x, weight[:60], eps=1e-6)
    with pytest.raises(ValueError, match="dtype is bfloat16; give float32 or float16"):
        rms_norm.rms_norm(x, weight, eps=1e-6, dtype=jnp.bfloat16)
