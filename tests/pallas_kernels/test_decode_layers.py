"""All layers of a decode step in one kernel: the bits of one product after the other."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.compat import why_not_lowerable
from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.decode_layers import Layers, Matrix, decode_layers, serves
from pallas_kernels.decode_layers.reference import reference
from pallas_kernels.quantised_matmul import Layout, interleave, pack, quantised_matmul
from pallas_kernels.quantised_matmul.testing import random_fields
from pallas_kernels.shapes import MODELS, Model

needs_lowering = pytest.mark.skipif(why_not_lowerable() is not None, reason="needs jax 0.11")
SMALL = Model(width=320, ffn=576, heads=4, kv_heads=2, head=64, vocab=0, layers=3)
WIDE = Model(width=2048, ffn=4864, heads=28, kv_heads=4, head=128, vocab=0, layers=2)
CASES: dict[str, tuple[Model, tuple[str, ...], bool]] = {  # formats of qkv (one or three), o, gate_up, down; norms
    "one format": (SMALL, ("Q4_0", "Q4_0", "Q4_0", "Q4_0"), False),
    "norms of heads": (SMALL, ("Q8_0", "Q5_0", "Q4_1", "Q8_0"), True),
    "mixed": (WIDE, ("Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"), False),
}


def operands(case: str, position: int, length: int) -> tuple[tuple, dict[str, Any]]:
    """All but the cache's length is the same whatever position and length are."""
    model, formats, norms = CASES[case]
    return sized(model, formats, norms, position, length, model.layers)


def sized(
    model: Model, formats: tuple[str, ...], norms: bool, position: int, length: int, layers: int
) -> tuple[tuple, dict[str, Any]]:
    keys = iter(jax.random.split(jax.random.key(0), 100))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape)

    def matrix(name: str, n: int, k: int, norm: bool, bias: bool, gated: bool = False) -> Matrix:
        layout = Layout(name, n, k)
        make = jax.jit(lambda key: pack(layout, random_fields(layout, key, (layers,))))
        words = interleave(make(next(keys)), make(next(keys))) if gated else make(next(keys))
        return Matrix(words, layout, 1 + 0.1 * normal(layers, k) if norm else None, normal(layers, n) if bias else None)

    q, kv, width, ffn = model.heads * model.head, model.kv_heads * model.head, model.width, model.ffn
    *of_qkv, o, gate_up, down = formats
    rows = (q + 2 * kv,) if len(of_qkv) == 1 else (q, kv, kv)
    stack = Layers(
        tuple(matrix(name, n, width, True, True) for name, n in zip(of_qkv, rows, strict=True)),
        matrix(o, width, q, False, norms),
        matrix(gate_up, ffn, width, True, False, gated=True),
        matrix(down, width, ffn, False, norms),
        *((1 + 0.1 * normal(layers, model.head), 1 + 0.1 * normal(layers, model.head)) if norms else ()),
    )
    theta = normal(2, model.head // 2)
    x, longest = normal(1, width), max(length, 4096)
    caches = (normal(layers + 1, 1, model.kv_heads, longest, model.head)[:, :, :, :length] for _ in range(2))
    tables, windows = jnp.arange(layers) % 2, jnp.where(jnp.arange(layers) == 1, 40, 0)
    where = tables.astype(jnp.int32), windows.astype(jnp.int32), jnp.array([position], jnp.int32)
    options = {"activation": "silu", "eps": 1e-6, "scale": model.head**-0.5}
    return (x, stack, jnp.cos(theta), jnp.sin(theta), *where, *caches, 1), options


OPTIONS = {"activation": "silu", "eps": 1e-6, "scale": 0.1}


@needs_lowering
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("length", [100, 700])
def test_it_is_one_kernel_that_writes_into_the_caches(case, length):
    args = jax.eval_shape(lambda: operands(case, 5, length)[0])
    assert serves(args[1], args[7].shape, args[2].shape[1], "silu")
    call = jax.jit(partial(decode_layers, **OPTIONS), donate_argnums=(7, 8))
    text = call.trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu") == 1 and text.count("output_tuple_indices") == 3


@needs_lowering
def test_vmap_is_lowered():
    args = jax.eval_shape(lambda: jax.tree.map(lambda x: jnp.stack([x, x]), operands("one format", 5, 100)[0]))
    traced = jax.jit(jax.vmap(partial(decode_layers, **OPTIONS))).trace(*args)
    assert "@mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", MODELS)
def test_real_models_have_room(name):
    m = MODELS[name]
    formats = ("Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K") if m.width % 256 == 0 else ("Q4_0",) * 4
    args = jax.eval_shape(lambda: sized(m, formats, False, 0, 64, 1)[0])
    assert serves(args[1], args[7].shape, m.head // 2, "silu")
    assert not serves(args[1], (1, 2, *args[7].shape[2:]), m.head // 2, "silu")


def one_after_the_other(args: tuple, options: dict[str, Any]) -> tuple:
    return reference(*args, **options, product=quantised_matmul, attend=decode_attention)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("length", "positions"), [(64, (0, 5, 63, 64, -1)), (700, (255, 256, 600, 699, 5000)), (4096, (4000,))]
)
def test_the_bits_of_one_product_after_the_other(case, length, positions):
    args, options = operands(case, 0, length)
    ours = jax.jit(partial(decode_layers, **options))
    separate = jax.jit(partial(one_after_the_other, options=options))
    for position in positions:
        here = (*args[:6], jnp.array([position], jnp.int32), *args[7:])
        for a, b in zip(ours(*here), separate(here), strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(position))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_against_the_definition(case):
    args, options = operands(case, 600, 700)
    (x, *_), (wanted, *_) = jax.jit(partial(decode_layers, **options))(*args), reference(*args, **options)
    assert jnp.linalg.norm(x - wanted) < 1e-3 * jnp.linalg.norm(wanted)


@pytest.mark.gpu
def test_many_times_the_same_bits():
    """No number is read before it is written, and none after it is overwritten."""
    args, options = operands("one format", 600, 700)
    call = jax.jit(partial(decode_layers, **options))
    first = np.asarray(call(*args)[0])
    for x in [call(*args)[0] for _ in range(300)]:
        np.testing.assert_array_equal(x, first)
