"""What is promised of numbers: how near they are to exact ones, and when two programs give the same bits."""

from minfer_jax.model import Model

MEAN, LARGEST = 0.001, 0.02
"""Difference, in nats, between log-probabilities by default and exact ones: on average, and of any one of them."""


def rounding(model: Model, bound: float) -> float:
    """How far the results of one computation in two shapes may be apart: not at all by native kernels, whose order of
    adding no shape changes; by ``bound``, some float32 roundings, where XLA chooses the order for each shape."""
    return 0.0 if model.provenance["implementation"] == "ffi" else bound
