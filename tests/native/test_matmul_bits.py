"""Native products give a row of x the same bits in whatever company it is multiplied."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer_jax.quant import PACKED
from tests.native.matmul import FORMATS, assert_same_bits, inputs, multiply, weight

pytestmark = pytest.mark.usefixtures("kernels")

K = 256
KINDS = ("ordinary", "tiny", "subnormal", "huge", "zero", "mixed")


def row_of_kind(kind: str, seed: int) -> np.ndarray:
    """float32 [K]."""
    x = inputs(1, K, seed)[0]
    factors = {"tiny": 1e-33, "subnormal": 1e-40, "huge": 1e33, "zero": 0}
    if kind == "mixed":
        return x * np.float32(10) ** np.random.default_rng(seed).integers(-42, 30, K).astype(np.float32)
    return x * np.float32(factors.get(kind, 1))


def company(m: int, seed: int) -> np.ndarray:
    """Rows of every kind, and some that are not finite: [m, K]."""
    x = np.array([row_of_kind(KINDS[i % len(KINDS)], seed + i) for i in range(m)]).reshape(m, K)
    for i, value in enumerate((np.nan, np.inf, -np.inf)):
        x[i + 1 :: 7, (seed + i) % K] = value
    return x


rows = st.tuples(st.sampled_from(KINDS), st.integers(0, 99))
batches = st.tuples(st.one_of(st.integers(1, 20), st.sampled_from([64, 255, 256, 257, 300])), st.integers(0, 99))
names = st.lists(st.sampled_from(FORMATS), min_size=1, max_size=3)
sizes = st.sampled_from([1, 16, 17, 40])


@settings(max_examples=30, deadline=None)
@given(rows, batches, names, st.lists(sizes, min_size=3, max_size=3), st.booleans(), st.data())
def test_other_rows_and_other_weights(row, batch, names, sizes, exact, data):
    """A plain weight has those in its company multiplied exactly."""
    alone, others = row_of_kind(*row), company(*batch)
    at = data.draw(st.integers(0, len(others) - 1))
    others[at] = alone
    weights = [weight(name, n, K)[0] for name, n in zip(names, sizes, strict=False)]
    together = multiply(others, weights, exact=exact)
    exact = exact or not set(names) <= set(PACKED)
    for y, w in zip(together, weights, strict=True):
        assert_same_bits(y[at], multiply(alone[None], [w], exact=exact)[0][0])


@settings(max_examples=20, deadline=None)
@given(rows, batches, st.sampled_from(["silu", "gelu"]), st.booleans(), st.booleans(), st.data())
def test_other_rows_with_norm_gate_bias_and_residual(row, batch, activation, has_norm, exact, data):
    alone, others = row_of_kind(*row), company(*batch)
    at = data.draw(st.integers(0, len(others) - 1))
    others[at] = alone
    weights, biases = [weight(name, 40, K)[0] for name in ("Q4_K", "Q5_0")], [inputs(1, 40)[0], None]
    residual = inputs(len(others), 40)
    more = {"activation": activation, "norm": inputs(1, K)[0] if has_norm else None, "eps": 1e-5, "exact": exact}
    (together,) = multiply(others, weights, biases, residual=residual, **more)
    (expected,) = multiply(alone[None], weights, biases, residual=residual[at : at + 1], **more)
    assert_same_bits(together[at], expected[0])


def digest() -> str:
    """Of products of every format and of some with all that goes before and after, for several numbers of rows."""
    hashed = hashlib.sha256()
    for m in 1, 9, 300:
        x = company(m, seed=m)
        x[~np.isfinite(x)] = 1
        for exact in False, True:
            for y in multiply(x, [weight(name, 257, K)[0] for name in PACKED], exact=exact):
                hashed.update(y.tobytes())
            gated = [weight(name, 257, K)[0] for name in ("Q4_K", "F16")]
            more = {"activation": "gelu", "norm": inputs(1, K)[0], "eps": 1e-5, "residual": inputs(m, 257)}
            hashed.update(multiply(x, gated, exact=exact, **more)[0].tobytes())
    return hashed.hexdigest()


def pool_threads() -> int:
    """Threads in XLA's pool, which Linux tells by their names."""
    return sum(name.read_text().startswith("tf_XLAEigen") for name in Path("/proc/self/task").glob("*/comm"))


PROGRAM = """
import ctypes, sys
from minfer_jax.native import library
from tests.native.test_matmul_bits import digest, pool_threads
assert library().minfer_use_kernels(sys.argv[1].encode())
print(digest(), pool_threads())
"""


def test_threads(kernels: str):
    """NPROC is how many threads XLA takes."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, kernels],
            env=os.environ | {"NPROC": str(n)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for n in (1, 5)
    ]
    found, threads = zip(*outputs, strict=True)
    assert set(found) == {digest()}
    assert not sys.platform.startswith("linux") or threads == ("1", "5")
