"""The kernel of a decode step's attention against its definition."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.compat import why_not_lowerable
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.decode_attention.kernel import SPLIT
from pallas_kernels.decode_attention.reference import reference

needs_lowering = pytest.mark.skipif(why_not_lowerable() is not None, reason="needs jax 0.11")
LAYERS, LAYER = 3, 1
SIZES = [  # heads, heads of keys and values, their size, pairs that are rotated, norms
    (14, 2, 64, 32, False),
    (9, 3, 64, 32, False),
    (28, 4, 128, 64, False),
    (4, 1, 256, 128, True),
    (4, 4, 64, 24, True),
]


def operands(sizes: tuple[int, int, int, int, bool], positions: list[int], length: int) -> tuple[tuple, dict]:
    heads, kv, dim, half, norms = sizes
    rng, rows = np.random.default_rng(0), len(positions)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    theta = rng.uniform(0, 6, (rows, half))
    cos, sin = (jnp.asarray(f(theta), jnp.float32) for f in (np.cos, np.sin))
    caches = (normal(LAYERS, rows, kv, length, dim) for _ in range(2))
    where = jnp.array(positions, jnp.int32), jnp.int32(0)
    args = (normal(rows, heads + 2 * kv, dim), cos, sin, *where, *caches)
    weights = (1 + 0.1 * normal(dim), 1 + 0.1 * normal(dim)) if norms else None
    return (*args, jnp.int32(LAYER)), {"scale": dim**-0.5, "norms": weights, "eps": 1e-6}


def run(args: tuple, options: dict[str, Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.jit(partial(decode_attention, **options))(*args)]


@needs_lowering
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("length", [256, 2500])
def test_it_is_lowered_and_writes_into_the_caches(sizes, length):
    args, options = operands(sizes, [5, 7], length)
    traced = jax.jit(partial(decode_attention, **options), donate_argnums=(5, 6)).trace(*args)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("output_tuple_indices") == 2 and text.count("@mosaic_gpu") == 1 + (length > SPLIT)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [0, 1, 40])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("length", [256, 300, 2500])
def test_against_the_definition(sizes, length, window):
    args, options = operands(sizes, [0, -1, 7, 63, 64, 200, 255, length - 1, length, length + 3], length)
    args = (*args[:4], jnp.int32(window), *args[5:])
    for ours, wanted in zip(run(args, options), reference(*args, **options), strict=True):
        np.testing.assert_allclose(ours, wanted, atol=2e-5)


@pytest.mark.gpu
def test_bits_depend_on_the_row_alone():
    (qkv, cos, sin, positions, window, keys, values, layer), options = operands(SIZES[0], [2047, 3, 500], 3000)
    for row, length in ((0, 2048), (1, 16), (2, 600), (2, 3000)):
        one = slice(row, row + 1)
        cut = [x[:, one, :, :length] for x in (keys, values)]
        args = (*(x[one] for x in (qkv, cos, sin, positions)), window, *cut, layer)
        together = run((qkv, cos, sin, positions, window, keys, values, layer), options)[0][one]
        np.testing.assert_array_equal(run(args, options)[0], together)


@pytest.mark.gpu
def test_what_is_beyond_a_row_s_position_is_never_read_as_a_number():
    args, options = operands(SIZES[0], [20, 90], 256)
    dirty = [x.at[:, 0, :, 21:].set(jnp.nan).at[:, 1, :, 91:].set(jnp.nan) for x in args[5:7]]
    ours = run((*args[:5], *dirty, args[7]), options)[0]
    np.testing.assert_array_equal(ours, run(args, options)[0])


@needs_lowering
def test_vmap_is_lowered():
    args, options = operands(SIZES[0], [5, 7], 256)
    many = [jnp.stack([x, x]) for x in args]
    traced = jax.jit(jax.vmap(partial(decode_attention, **options))).trace(*many)
    assert "@mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()
