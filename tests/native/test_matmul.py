"""Native products against float64 products of the gguf library's weights: every format, odd sizes, stacks."""

from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.quant import PACKED, to_stack
from minfer_jax.quant.native_matmul import products
from tests.native.matmul import (
    FORMATS,
    ROWS,
    assert_product,
    assert_same_bits,
    inputs,
    marked,
    multiply,
    raw,
    values,
    weight,
    widths,
)

pytestmark = pytest.mark.usefixtures("kernels")

BATCHES = (0, 1, 2, 3, 5, 7, 8, 9, 17, 300)  # rows of x
both = pytest.mark.parametrize("exact", [False, True])


@both
@pytest.mark.parametrize("name", FORMATS)
def test_products(name: str, exact: bool):
    for k in widths(name):
        weights = [weight(name, n, k) for n in ROWS]
        for m in BATCHES if k == widths(name)[0] else (1, 17):
            x = inputs(m, k)
            for y, (_, w) in zip(multiply(x, [w.tensor for w in weights], exact=exact), weights, strict=True):
                assert_product(y, x, w, exact or name not in PACKED)


@pytest.mark.parametrize("std", [1.0, 1e-6])
@pytest.mark.parametrize("name", FORMATS)
def test_an_exact_product_expands_weights_exactly(name: str, std: float):
    """The rows of the identity give the weights, bit for bit; small ones have scales that float16 holds as subnormal
    numbers."""
    k = widths(name)[0]
    tensor, w = weight(name, 33, k, std)
    (y,) = multiply(np.eye(k, dtype=np.float32), [tensor], exact=True)
    np.testing.assert_array_equal(y.T, w)


@both
def test_leading_axes(exact: bool):
    tensor, w = weight("Q5_1", 17, 96)
    x = inputs(6, 96)
    for shape in (), (1,), (2, 3), (2, 0, 3):
        part = x[: int(np.prod(shape))].reshape(*shape, 96)
        assert_product(multiply(part, [tensor], exact=exact)[0], part, w, exact)


@both
@pytest.mark.parametrize("names", [("Q5_K",) * 3, ("F16",) * 3, ("Q4_K", "Q6_K", "Q4_K", "F32")])
def test_layers_of_a_stack(names: tuple[str, ...], exact: bool):
    """By an index that is traced, one after the other; formats may differ."""
    parts = [raw(name, 33, 256, seed=i) for i, name in enumerate(names)]
    stack, x = marked(to_stack(parts, "ffi", "float32"), exact), inputs(5, 256)

    @jax.jit
    def every_layer(x, stack):
        return jax.lax.scan(lambda _, i: (None, products(x, [stack.layer(i)], [None])[0]), None, jnp.arange(len(names)))

    for y, part in zip(np.asarray(every_layer(x, stack)[1]), parts, strict=True):
        assert_product(y, x, values(part), exact or part.type.name not in PACKED)


@both
@pytest.mark.parametrize("names", [FORMATS, tuple(PACKED), ("Q4_K", "BF16"), ("F16", "F32", "Q8_0")])
def test_formats_together(names: tuple[str, ...], exact: bool):
    """Where one is plain, the others are multiplied exactly as well."""
    weights = [weight(name, n, 256) for name, n in zip(names, cycle(ROWS), strict=False)]
    exact_or_mixed = exact or not set(names) <= set(PACKED)
    for m in 1, 9:
        x = inputs(m, 256)
        for y, (_, w) in zip(multiply(x, [w.tensor for w in weights], exact=exact), weights, strict=True):
            assert_product(y, x, w, exact_or_mixed)


@pytest.mark.parametrize("value", [1e30, -1e30, 1e-35, 1e-40, 0.0])
@both
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q6_K", "IQ4_NL", "F16"])
def test_huge_and_tiny_numbers(name: str, exact: bool, value: float):
    """In every column, in one block, and in one column among ordinary ones."""
    tensor, w = weight(name, 17, 256)
    x = inputs(3, 256)
    x[0], x[1, 32:64], x[2, 100] = x[0] * value, x[1, 32:64] * value, value
    assert_product(multiply(x, [tensor], exact=exact)[0], x, w, exact or name not in PACKED)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@both
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_finite_spoils_its_row_and_no_other(name: str, exact: bool, value: float):
    tensor, w = weight(name, 33, 256)
    x = inputs(9, 256)
    expected = multiply(x, [tensor], exact=exact)[0]
    x[4, 77] = value
    x[6, 3:5] = value, -value
    (y,) = multiply(x, [tensor], exact=exact)
    spoiled = np.isin(np.arange(9), (4, 6))
    assert not np.isfinite(y[spoiled][:, w[:, [77, 3]].all(1)]).any()
    assert_same_bits(y[~spoiled], expected[~spoiled])
