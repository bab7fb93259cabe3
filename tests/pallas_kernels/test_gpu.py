"""On the card: products against float64, fused operands against the reference, and bits that depend on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import compat
from pallas_kernels.quantised_matmul import FORMATS, Layout, interleave, pack, quantised_matmul, reference
from pallas_kernels.quantised_matmul.testing import random_fields

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(compat.why_not_available() is not None, reason=str(compat.why_not_available())),
]


def matrix(name: str, n: int, k: int, seed: int = 0) -> tuple[Layout, jax.Array]:
    layout = Layout(name, n, k)
    return layout, pack(layout, random_fields(layout, jax.random.key(seed)))


def normal(*shape: int, seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def error(ours: jax.Array, layout: Layout, packed: jax.Array, x: jax.Array) -> float:
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        w = np.asarray(reference.weights(layout, np.asarray(packed)))
    right = np.asarray(x, np.float64) @ w.astype(np.float64).T
    return float(np.linalg.norm(np.asarray(ours, np.float64) - right) / np.linalg.norm(right))


@pytest.mark.parametrize("columns", [1792, 4864])
@pytest.mark.parametrize("name", FORMATS)
def test_products_and_bits(name, columns):
    """Right for 1 to 8 rows of x; a row has the same bits whatever stands beside it."""
    if FORMATS[name].block == 32:
        columns -= 32 * 7
    layout, packed = matrix(name, 100, columns)
    x = normal(8, columns)
    call = jax.jit(lambda p, x: quantised_matmul(layout, p, x))
    whole = np.asarray(call(packed, x))
    assert error(whole, layout, packed, x) < 8e-5
    for rows in ([0], [7], [5, 0, 3]):
        np.testing.assert_array_equal(call(packed, x[jnp.array(rows)]), whole[rows])
    mixed = x.at[3].set(jnp.nan).at[4].set(1e20)
    others = [0, 1, 2, 5, 6, 7]
    beside = np.asarray(call(packed, mixed))
    np.testing.assert_array_equal(beside[others], whole[others])
    assert np.isnan(beside[3]).all()


@pytest.mark.parametrize("gate", [None, "silu", "gelu"])
@pytest.mark.parametrize("batch", [1, 3, 8, 19])
def test_operands(batch, gate):
    layout, packed = matrix("Q4_0", 200, 896)
    if gate:
        packed = interleave(packed, matrix("Q4_0", 200, 896, seed=5)[1])
    x = normal(batch, 896)
    operands = {"norm": normal(896, seed=2), "bias": normal(200, seed=3), "residual": normal(batch, 200, seed=4)}
    ours = np.asarray(jax.jit(lambda p, x, o: quantised_matmul(layout, p, x, gate=gate, **o))(packed, x, operands))
    right = np.asarray(reference.quantised_matmul(layout, packed, x, gate=gate, **operands))
    assert np.linalg.norm(ours - right) / np.linalg.norm(right) < 8e-5
    alone = quantised_matmul(layout, packed, x[:1], gate=gate, **operands | {"residual": operands["residual"][:1]})
    np.testing.assert_array_equal(alone[0], ours[0])


def test_gate_of_long_rows():
    """More columns than a block takes at once: the epilogue is not the kernel's."""
    layout, packed = matrix("Q4_K", 64, 5120)
    both = interleave(packed, matrix("Q4_K", 64, 5120, seed=5)[1])
    x, norm = normal(5, 5120), normal(5120, seed=2)
    call = jax.jit(lambda p, x: quantised_matmul(layout, p, x, norm=norm, gate="silu"))
    ours, right = call(both, x), reference.quantised_matmul(layout, both, x, norm=norm, gate="silu")
    assert float(jnp.linalg.norm(ours - right) / jnp.linalg.norm(right)) < 8e-5
    np.testing.assert_array_equal(call(both, x[2:3])[0], ours[2])


def test_layers():
    layout = Layout("Q6_K", 48, 512)
    stack = jnp.stack([matrix("Q6_K", 48, 512, seed)[1] for seed in range(3)])
    x, norm, bias = normal(2, 512), normal(3, 512, seed=2), normal(3, 48, seed=3)
    call = jax.jit(
        lambda stack, x, layer, norm, bias: quantised_matmul(layout, stack, x, layer=layer, norm=norm, bias=bias)
    )
    for layer in range(3):
        alone = quantised_matmul(layout, stack[layer], x, norm=norm[layer], bias=bias[layer])
        np.testing.assert_array_equal(call(stack, x, jnp.int32(layer), norm, bias), alone)


@pytest.mark.parametrize("shape", [(151936, 896), (3584, 18944), (18944, 3584), (896, 896)])
@pytest.mark.parametrize("batch", [1, 8])
def test_real_shapes(shape, batch):
    """Several phases and several passes among them; every row of tiles in several places."""
    layout, packed = matrix("Q4_0", *shape)
    x = normal(batch, shape[1])
    y = np.asarray(quantised_matmul(layout, packed, x))
    tiles = np.unique(np.linspace(0, layout.tiles - 1, 20).astype(int))
    part = Layout("Q4_0", 16 * len(tiles), shape[1])
    assert error(y[:, (tiles[:, None] * 16 + np.arange(16)).ravel()], part, packed[tiles], x) < 8e-5
