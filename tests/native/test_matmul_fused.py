"""What native products do in the same call: norm in front; bias, gate and residual behind. And calls that are wrong."""

from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import minfer_jax as mj
from minfer_jax.gguf import RawTensor
from minfer_jax.native import call
from minfer_jax.quant import PACKED, QuantTensor, to_stack, to_tensor
from minfer_jax.quant.native_matmul import products
from tests.native.matmul import allowed, assert_product, assert_same_bits, inputs, multiply, raw, weight

pytestmark = pytest.mark.usefixtures("kernels")

EPS = 1e-5
GATES = ("silu", "gelu")
both = pytest.mark.parametrize("exact", [False, True])


def vector(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


def normed(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * norm


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    """GELU in its tanh form is x times the sigmoid of z, too."""
    z = x if activation == "silu" else np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-z))


def plain(values: np.ndarray) -> QuantTensor:
    """A float32 weight."""
    data = np.ascontiguousarray(values, np.float32)
    return to_tensor(RawTensor("w", GGMLQuantizationType.F32, data.shape, data.view(np.uint8)), "ffi", "float32")


@both
@pytest.mark.parametrize("name, k", [("Q4_0", 96), ("Q6_K", 768), ("F16", 33), ("F32", 1)])
def test_norm_in_front(name: str, k: int, exact: bool):
    tensor, w = weight(name, 17, k)
    x, norm = inputs(9, k), vector(k)
    x *= np.array([1e-9, 1e-3, 1, 1, 1, 1, 30, 1e6, 1e15], np.float32)[:, None]
    (y,) = multiply(x, [tensor], exact=exact, norm=norm, eps=EPS)
    assert_product(y, normed(x, norm), w, exact or name not in PACKED)


@both
@pytest.mark.parametrize("names", [("Q4_K", "Q4_K"), ("Q5_0", "IQ4_XS"), ("Q8_0", "BF16"), ("F32", "F16")])
@pytest.mark.parametrize("activation", GATES)
def test_all_of_it(names: tuple[str, str], activation: str, exact: bool):
    """Norm, gate, each bias and residual, all there or not."""
    (gate, w_gate), (up, w_up) = (weight(name, 33, 256, std=0.1) for name in names)
    b_gate, b_up, norm = vector(33, 1), vector(33, 2), vector(256, 3)
    exact_or_plain = exact or not set(names) <= set(PACKED)
    for m, *there in product((1, 6), *[(False, True)] * 4):
        x, residual = inputs(m, 256), vector(m * 33, 4).reshape(m, 33)
        has_norm, has_gate_bias, has_up_bias, has_residual = there
        (y,) = multiply(
            x,
            [gate, up],
            [b_gate if has_gate_bias else None, b_up if has_up_bias else None],
            exact=exact,
            activation=activation,
            norm=norm if has_norm else None,
            eps=EPS,
            residual=residual if has_residual else None,
        )
        h = normed(x, norm) if has_norm else x.astype(np.float64)
        a, b = h @ w_gate.T + has_gate_bias * b_gate, h @ w_up.T + has_up_bias * b_up
        off_a, off_b = (allowed(h, w, exact_or_plain) + 1e-6 for w in (w_gate, w_up))
        expected = activated(a, activation) * b + has_residual * residual
        bound = 1.2 * off_a * abs(b) + (abs(a) + off_a) * off_b + 1e-6 * (1 + abs(a * b))
        assert (abs(y - expected) <= bound).all(), there


@pytest.mark.parametrize("activation", GATES)
def test_gates(activation: str):
    """A second weight of 0 with a bias of 1 leaves the activation alone."""
    x = np.concatenate([np.linspace(-120, 120, 4801), [0, 1e-30, -1e-30, 1e-3, 1e4, -1e4, 1e30, -1e30]])
    x = x.astype(np.float32)[:, None]
    weights, biases = [plain(np.ones((1, 1))), plain(np.zeros((1, 1)))], [None, np.ones(1, np.float32)]
    (y,) = multiply(x, weights, biases, activation=activation)
    x = x.astype(np.float64)
    expected = activated(x, activation)
    z = abs(x) + 0.08 * abs(x) ** 3 if activation == "gelu" else abs(x)  # its rounding is the exponential's error
    assert (abs(y - expected) <= abs(expected) * 3e-7 * z.clip(1, 90) + abs(x) * 1e-38).all()
    for value in np.nan, np.inf:
        (y,) = multiply(np.full((1, 1), value, np.float32), weights, biases, activation=activation)
        assert not np.isfinite(y).any()


@both
def test_bias_and_residual(exact: bool):
    """Each weight has its own bias, or none; the residual is added to the first product."""
    names = ("Q4_K", "Q8_0", "Q3_K")
    weights = [weight(name, n, 256) for name, n in zip(names, (33, 17, 257), strict=True)]
    for m in 1, 7:
        x, biases, residual = inputs(m, 256), [vector(33), None, vector(257)], vector(m * 33).reshape(m, 33)
        found = multiply(x, [w.tensor for w in weights], biases, exact=exact, residual=residual)
        for y, added, (_, w) in zip(found, (biases[0] + residual, 0, biases[2]), weights, strict=True):
            assert (abs(y - (x @ w.T + added)) <= allowed(x, w, exact) + 1e-6 * abs(added) + 1e-6).all()


@both
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spoils_its_row_and_no_other(exact: bool, value: float):
    gate, up = (weight(name, 33, 256)[0] for name in ("Q4_K", "Q6_K"))
    x, more = inputs(9, 256), {"exact": exact, "activation": "silu", "norm": vector(256), "eps": EPS}
    expected = multiply(x, [gate, up], **more)[0]
    x[4, 77] = value
    (y,) = multiply(x, [gate, up], **more)
    assert np.isnan(y[4]).all()
    others = np.arange(9) != 4
    assert_same_bits(y[others], expected[others])


@both
@pytest.mark.parametrize("every", [1, 2, 7, 400])
def test_rows_of_padding_are_zeros_and_change_nothing(every: int, exact: bool):
    """Whatever they hold, one in ``every`` rows being of padding."""
    weights, norm = [weight(name, n, 256)[0] for name, n in (("Q4_K", 33), ("Q6_K", 33), ("F16", 5))], vector(256)
    for m in 1, 9, 300:
        x, residual = inputs(m, 256), inputs(m, 33)
        positions = np.arange(m, dtype=np.int32)
        padding = positions % every == every - 1
        for more in {"residual": residual}, {"residual": residual, "activation": "silu"}:
            call = partial(multiply, exact=exact, norm=norm, eps=EPS)
            operands = weights[:2] if "activation" in more else weights
            expected = call(x, operands, **more)
            x[padding], residual[padding], positions[padding] = np.nan, np.inf, -1
            for y, clean in zip(call(x, operands, positions=positions, **more), expected, strict=True):
                assert_same_bits(y[~padding], clean[~padding])
                assert (y[padding] == 0).all()
            x[padding], residual[padding] = 0, 0


W = weight("Q4_K", 33, 256)[0]
WRONG_TYPE = replace(W, planes=W.planes | {"d": W.planes["d"].astype(jnp.float32)})
X = jnp.ones((3, 256))


@pytest.mark.parametrize(
    ("weights", "arguments", "message"),
    [
        ([replace(W, shape=(64, 256))], {}, "plane 0 has not the shape"),
        ([to_tensor(raw("Q4_K", 33, 256), "xla", "float32")], {}, "plane 0 has not the shape"),
        ([W, replace(weight("Q4_K", 17, 512)[0], shape=(17, 256))], {}, "plane 5 has not the shape"),
        ([replace(W, format="Q5_K")], {}, "plane 1 has not the shape"),
        ([WRONG_TYPE], {}, "plane 1 has not the dtype"),
        ([W.layer(1)], {}, "there is no layer 1"),
        ([W.layer(-1)], {}, "there is no layer -1"),
        ([to_stack([raw(name, 33, 256) for name in ("Q4_K", "Q6_K")], "ffi", "float32").layer(2)], {}, "no layer 2"),
        ([W], {"biases": [jnp.ones(32)]}, "a bias has not one float32 for each row"),
        ([W], {"biases": [jnp.ones(33, jnp.bfloat16)]}, "a bias has not one float32 for each row"),
        ([W], {"norm": jnp.ones(255)}, "the norm's weight is not"),
        ([W], {"residual": jnp.ones((3, 32))}, "the residual is not"),
        ([W], {"positions": jnp.zeros(4, jnp.int32)}, "the positions are not"),
        ([W, W, W], {"activation": "silu"}, "not those that its formats say"),
        ([W], {"activation": "silu"}, "not those that its formats say"),
        ([W, weight("Q4_K", 17, 256)[0]], {"activation": "gelu"}, "plane 5 has not the shape"),
    ],
)
def test_wrong_operands_are_refused_in_one_line(weights, arguments, message):
    arguments = {"biases": [None] * len(weights)} | arguments
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"^INVALID_ARGUMENT: minfer_matmul: .*{message}") as caught:
        jax.block_until_ready(products(X, weights, **arguments))
    assert "\n" not in str(caught.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(call, "library", lambda: None)
    with pytest.raises(mj.UnsupportedError, match="'ffi' needs the native library; install again with a C"):
        products(X, [W], [None])
