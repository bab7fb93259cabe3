"""What is done outside of the kernel where rows are long, against numpy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quantised_matmul import Layout, _finish, _normed
from pallas_kernels.quantised_matmul.plan import Plan


@pytest.mark.parametrize("gate", [None, "silu", "gelu"])
def test_sums_of_slices(gate):
    plan = Plan(Layout("Q4_0", 40, 9728), 3, gate, bias=True, residual=True)
    rng = np.random.default_rng(0)
    assert plan.slices > 1
    parts, bias, residual = (rng.normal(size=shape) for shape in (plan.out_shape, (40,), (3, 40)))
    total = parts.sum(0)
    if gate == "silu":
        wanted = total[0] / (1 + np.exp(-total[0])) * total[1]
    elif gate == "gelu":
        wanted = 0.5 * total[0] * (1 + np.tanh(np.sqrt(2 / np.pi) * (total[0] + 0.044715 * total[0] ** 3))) * total[1]
    else:
        wanted = total[0]
    ours = _finish(plan, *(jnp.asarray(x, jnp.float32) for x in (parts, bias, residual)))
    np.testing.assert_allclose(ours, wanted + bias + residual, rtol=1e-5, atol=1e-5)


def test_norm():
    x, weight = np.random.default_rng(1).normal(size=(2, 5, 5120))[:, :2]
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight[0]
    ours = _normed(jnp.asarray(x, jnp.float32), jnp.asarray(weight[0], jnp.float32), 1e-6)
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
