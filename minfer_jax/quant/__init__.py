"""Quantised weights: the format table, their planes, and the matrix product that hides both from a model."""

from minfer_jax.quant.convert import to_stack, to_tensor, to_vector
from minfer_jax.quant.formats import PACKED, PLAIN, Format
from minfer_jax.quant.matmul import IMPLEMENTATIONS, matmul
from minfer_jax.quant.mixed import MixedStack, Weight
from minfer_jax.quant.narrow import narrow
from minfer_jax.quant.tensor import QuantTensor

__all__ = [
    "IMPLEMENTATIONS",
    "PACKED",
    "PLAIN",
    "Format",
    "MixedStack",
    "QuantTensor",
    "Weight",
    "matmul",
    "narrow",
    "to_stack",
    "to_tensor",
    "to_vector",
]
