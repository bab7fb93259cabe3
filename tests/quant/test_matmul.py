"""The dispatcher and its implementations against float64 products of the gguf library's weights."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import minfer_jax as mj
from minfer_jax.gguf import RawTensor
from minfer_jax.quant import matmul, to_stack, to_tensor
from tests.native.built import needs_library

QUANTISABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32")


def quantised(name: str, n: int, k: int) -> RawTensor:
    values = np.random.default_rng(7).normal(size=(n, k)).astype(np.float32)
    data = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    return RawTensor("w", GGMLQuantizationType[name], (n, k), data)


@pytest.mark.parametrize("name", QUANTISABLE)
@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 5), (0,)])
@pytest.mark.parametrize("shape", [(1, 32), (17, 96), (64, 288)])
def test_products(name, lead, shape):
    part = quantised(name, *shape)
    x = np.random.default_rng(1).normal(size=(*lead, shape[1])).astype(np.float32)
    oracle = x.astype(np.float64) @ gguf.quants.dequantize(part.data, part.type).astype(np.float64).T
    for w in (to_tensor(part, "xla", "float32"), to_tensor(part, "dense", "float32")):
        y = matmul(x, w)
        assert y.dtype == jnp.float32 and y.shape == (*lead, shape[0])
        np.testing.assert_allclose(y, oracle, atol=2e-6 * shape[1] ** 0.5 * 3, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_weights_round_x_and_accumulate_in_float32(dtype):
    part = quantised("F32", 8, 4096)
    x = np.random.default_rng(2).normal(size=(3, 4096)).astype(np.float32)
    w = to_tensor(part, "dense", dtype)
    rounded = x.astype(dtype).astype(np.float64)
    oracle = rounded @ np.asarray(w.values()).astype(np.float64).T
    y = matmul(x, w)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, oracle, atol=1e-3)


def test_float16_takes_inputs_beyond_its_range():
    """Activations of real models exceed 65504. Of each x the relative error is at most 2^-12, or 2^-19 where it is
    small; beyond four million the result is no number, never a wrong one."""
    part = quantised("F32", 8, 64)
    w = to_tensor(part, "dense", "float16")
    values = np.asarray(w.values()).astype(np.float64)
    for size in (4e6, 1e5, 1.0, 1e-3, 1e-6, 0.0):
        x = (size * np.random.default_rng(3).uniform(-1, 1, (3, 64))).astype(np.float32)
        bound = np.maximum(2.0**-12 * np.abs(x), 2.0**-19) @ np.abs(values).T
        assert (np.abs(matmul(jnp.asarray(x), w) - x.astype(np.float64) @ values.T) <= 1.01 * bound).all()
    assert not np.isfinite(matmul(jnp.full((1, 64), 5e6), w)).any()


def test_a_float16_weight_of_the_packed_path_does_not_round_x():
    """Neither rounding nor float16's range: the products of a plain F16 file are exact float32 ones."""
    part = quantised("F16", 4, 32)
    x = np.full((1, 32), 70000.0, np.float32)
    oracle = x.astype(np.float64) @ gguf.quants.dequantize(part.data, part.type).astype(np.float64).T
    np.testing.assert_allclose(matmul(x, to_tensor(part, "xla", "float32")), oracle, rtol=1e-6)


def test_g06_integers_are_not_weights():
    part = RawTensor("w", GGMLQuantizationType.I32, (2, 32), np.zeros((2, 128), np.uint8))
    with pytest.raises(mj.UnsupportedError, match="tensor w: type I32"):
        to_tensor(part, "dense", "float32")


def test_unavailable_implementations_say_why():
    w = to_tensor(quantised("Q4_0", 4, 32), "xla", "float32")
    x = jnp.ones((1, 32))
    with pytest.raises(mj.UnsupportedError, match="'cuda' is not one of dense, xla"):
        matmul(x, w, "cuda")
    with pytest.raises(mj.UnsupportedError, match="dense.*Q4_0"):
        matmul(x, w, "dense")


@needs_library
def test_native_products_refuse_what_is_not_theirs():
    part = RawTensor("w", GGMLQuantizationType.F32, (4, 32), np.ones((4, 32), np.float32).view(np.uint8))
    x, tiled = jnp.ones((2, 32)), to_tensor(part, "ffi", "float32")
    with pytest.raises(mj.UnsupportedError, match="in rows"):
        matmul(x, tiled, "dense")
    with pytest.raises(mj.UnsupportedError, match="in tiles"):
        matmul(x, to_tensor(part, "dense", "float32"), "ffi")
    with pytest.raises(mj.ArgumentError, match=r"x is \[..., 31\] and the weight \[4, 32\]"):
        matmul(x[:, 1:], tiled)
    for other in (part, quantised("Q4_0", 4, 32)):  # two of a type, or a type each
        with pytest.raises(mj.ArgumentError, match="stack of matrices; take one with layer"):
            matmul(x, to_stack([part, other], "ffi", "float32"))


def test_a_quant_tensor_is_a_pytree_of_planes():
    w = to_tensor(quantised("Q5_1", 4, 64), "xla", "float32")
    leaves, treedef = jax.tree.flatten(w)
    assert len(leaves) == 4  # codes, codes_high, d, dmin
    again = jax.tree.unflatten(treedef, leaves)
    assert again.format == "Q5_1" and again.shape == (4, 64)
    traces = []
    f = jax.jit(lambda w, x: traces.append(1) or matmul(x, w))
    f(w, jnp.ones((1, 64))), f(again, jnp.zeros((1, 64)))
    assert len(traces) == 1
