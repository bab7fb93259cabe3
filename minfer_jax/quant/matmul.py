"""The bare matrix product with weights of any format; ``models/linear.py`` adds what stands around it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from minfer_jax.errors import UnsupportedError
from minfer_jax.quant.fragments import takes
from minfer_jax.quant.mixed import Weight
from minfer_jax.quant.narrow import narrow
from minfer_jax.quant.native_matmul import products
from minfer_jax.quant.tensor import QuantTensor


def matmul(x: jax.Array, w: Weight, implementation: str | None = None) -> jax.Array:
    """``x @ w.T`` with float32 accumulation: x [..., K] float32, w N x K -> [..., N] float32.

    implementation: None takes the one that the tensor was loaded for; a name forces one.
    Raises UnsupportedError when the named implementation does not exist or cannot take this tensor.
    """
    name = implementation or w.implementation
    if name not in IMPLEMENTATIONS:
        raise UnsupportedError(f"implementation {name!r} is not one of {', '.join(IMPLEMENTATIONS)}")
    return IMPLEMENTATIONS[name](x, w)


def _dense(x: jax.Array, w: Weight) -> jax.Array:
    """Plain weights as they are: float32 in full precision; 16-bit ones take x rounded to their own dtype."""
    if not isinstance(w, QuantTensor) or w.is_packed or w.is_tiled:
        raise UnsupportedError(f"implementation 'dense' needs plain weights in rows, not {w.format}: load with dense")
    return _dot(x, w.values())


def _xla(x: jax.Array, w: Weight) -> jax.Array:
    """Weights expanded to float32 inside the program, then a float32 product: the oracle of the faster ones."""
    return _dot(x, w.values().astype(jnp.float32))


def _pallas(x: jax.Array, w: Weight) -> jax.Array:
    """A decode step's input by the GPU kernels, others by what the weights were expanded to."""
    if not isinstance(w, QuantTensor) or w.implementation != "pallas":
        raise UnsupportedError("implementation 'pallas' needs weights laid out for it: load with pallas")
    if w.fragments is not None and takes(x):
        return w.fragments.product(x)
    return _dot(x, w.values())


def _ffi(x: jax.Array, w: Weight) -> jax.Array:
    """Tiled weights by the native kernels."""
    if not w.is_tiled:
        raise UnsupportedError("implementation 'ffi' needs weights in tiles: load with ffi")
    return products(x, [w], [None])[0]


def _dot(x: jax.Array, values: jax.Array) -> jax.Array:
    contract_last = (((x.ndim - 1,), (1,)), ((), ()))
    x, factor = narrow(x, values.dtype)
    y = jax.lax.dot_general(
        x, values, contract_last, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return y if factor == 1 else y * factor


IMPLEMENTATIONS: dict[str, Callable[[jax.Array, Weight], jax.Array]] = {
    "dense": _dense,
    "xla": _xla,
    "ffi": _ffi,
    "pallas": _pallas,
}
"""Every implementation by name."""
