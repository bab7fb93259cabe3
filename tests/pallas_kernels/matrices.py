"""Matrices for the tests of quantised products, and what is right for them."""

import gguf
import jax
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from minfer_jax.quant import PACKED
from pallas_kernels.quantised_matmul import Fields, Layout
from pallas_kernels.quantised_matmul.reference import weights
from pallas_kernels.quantised_matmul.testing import random_fields


def columns(name: str, blocks: int) -> int:
    return blocks * GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]


def raw_matrix(name: str, rows: int, blocks: int, seed: int) -> tuple[Layout, Fields, np.ndarray]:
    """A matrix of arbitrary bytes: its layout, its fields, and its weights as the gguf library has them."""
    kind = GGMLQuantizationType[name]
    size = GGML_QUANT_SIZES[kind][1]
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    split = PACKED[name].split(data.reshape(rows, blocks, size))
    fields = Fields(
        *(None if a is None else np.asarray(a) for a in jax.tree.leaves(split, is_leaf=lambda a: a is None))
    )
    with np.errstate(invalid="ignore", over="ignore"):
        return Layout(name, rows, columns(name, blocks)), fields, gguf.quants.dequantize(data, kind)


def sane_matrix(name: str, rows: int, blocks: int, seed: int) -> tuple[Layout, Fields]:
    """A matrix whose products with normal x are near 1."""
    layout = Layout(name, rows, columns(name, blocks))
    return layout, jax.tree.map(np.asarray, random_fields(layout, jax.random.key(seed)))


def exact_product(layout: Layout, packed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x @ w.T in float64, computed on the CPU."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        w = np.asarray(weights(layout, np.asarray(packed)))
    return np.asarray(x, np.float64) @ w.astype(np.float64).T


def relative_error(ours: jax.Array, right: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(ours, np.float64) - right) / np.linalg.norm(right))
