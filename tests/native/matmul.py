"""Products in float64, and what the tests of the native ones share."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from gguf import GGMLQuantizationType

from minfer_jax.gguf import RawTensor
from minfer_jax.quant import PACKED, PLAIN, MixedStack, QuantTensor, to_tensor
from minfer_jax.quant.native_matmul import products
from tests.tiny.weights import draw

FORMATS = (*PACKED, *PLAIN)
ROWS = (1, 5, 16, 17, 33, 257)  # of a matrix
LARGEST_INTEGER = 127 * 256 + 127  # what the largest number of a block of x becomes by default
ZERO = 1e-30  # a block of x without a larger number counts as zero, by default

Vectors = Sequence[np.ndarray | None]


class Weight(NamedTuple):
    """A matrix in tiles and its values [N, K] in float64."""

    tensor: QuantTensor
    values: np.ndarray


@cache
def raw(name: str, n: int, k: int, std: float = 1.0, seed: int = 0) -> RawTensor:
    kind = GGMLQuantizationType[name]
    return RawTensor("w", kind, (n, k), draw(f"{n} {k} {seed}", (n, k), kind, std).view(np.uint8))


def values(part: RawTensor) -> np.ndarray:
    return gguf.quants.dequantize(part.data, part.type).astype(np.float64)


@cache
def weight(name: str, n: int, k: int, std: float = 1.0, seed: int = 0) -> Weight:
    part = raw(name, n, k, std, seed)
    own = jax.tree.map(jnp.copy, to_tensor(part, "ffi", "float32"))  # whole pages would hide what is read beyond
    return Weight(own, values(part))


def widths(name: str) -> tuple[int, ...]:
    """Columns that a matrix of the format may have."""
    if name in PLAIN:
        return 33, 1, 100
    return (96, 32, 288) if gguf.GGML_QUANT_SIZES[GGMLQuantizationType[name]][0] == 32 else (256, 768)


def inputs(m: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(m, k)).astype(np.float32)


def marked(w: Any, exact: bool) -> Any:
    """As a model's weights are marked by load(precision=...)."""
    if isinstance(w, MixedStack):
        return replace(w, stacks=tuple(marked(stack, exact) for stack in w.stacks))
    return replace(w, exact=exact)


def multiply(x: Any, weights: Sequence[Any], biases: Vectors = (), exact: bool = False, **more) -> list[np.ndarray]:
    """One call of the native library."""
    given = [None if bias is None else jnp.asarray(bias) for bias in biases or [None] * len(weights)]
    more = {name: jnp.asarray(v) if isinstance(v, np.ndarray) else v for name, v in more.items()}
    return [np.asarray(y) for y in products(jnp.asarray(x), [marked(w, exact) for w in weights], given, **more)]


def allowed(x: np.ndarray, w: np.ndarray, exact: bool) -> np.ndarray:
    """Most that a product may be off: what rounding x to integers may do, and float32's own errors."""
    x, w = np.abs(x).astype(np.float64), np.abs(w)
    bound = 1e-6 * (x @ w.T) + x.shape[-1] * np.finfo(np.float32).tiny
    if exact:
        return bound
    largest = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32).max(-1)
    rounding = np.where(largest > ZERO, 0.5001 / LARGEST_INTEGER, 1) * largest
    return bound + rounding.repeat(32, -1) @ w.T


def assert_product(y: np.ndarray, x: np.ndarray, w: np.ndarray, exact: bool) -> None:
    """y is x @ w.T."""
    assert y.dtype == np.float32 and y.shape == (*x.shape[:-1], len(w))
    off = np.abs(y - x.astype(np.float64) @ w.T) - allowed(x, w, exact)
    assert (off <= 0).all(), f"beyond what is allowed by {off.max():.2g}"


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))
