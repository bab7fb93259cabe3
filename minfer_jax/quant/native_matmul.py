"""Products with tiled weights by the native kernels (native/matmul.cc): one call for all that share an input."""

from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.errors import ArgumentError
from minfer_jax.native import MATMUL
from minfer_jax.native.call import native_call
from minfer_jax.quant import formats, planes
from minfer_jax.quant.mixed import MixedStack, Weight

_GATES = {None: 0, "silu": 1, "gelu": 2}


def products(
    x: jax.Array,
    weights: Sequence[Weight],
    biases: Sequence[jax.Array | None],
    *,
    norm: jax.Array | None = None,
    eps: float = 0.0,
    activation: str | None = None,
    residual: jax.Array | None = None,
    positions: jax.Array | None = None,
) -> list[jax.Array]:
    """``x @ w.T + bias`` for every tiled weight: x [..., K] float32 -> [..., N] float32 each.

    weights: layers of stacks are of the same layer. biases: [N] or None for each. norm: weight [K] of an RMSNorm of x
    with ``eps`` in front. activation ("silu" or "gelu"): of two weights, the one result act(first) * second.
    residual: [..., N], added to the first result.
    positions: int32 [...]; a row at a negative one is padding, costs nothing and gives zeros.

    Raises ArgumentError for a stack of weights, or columns that do not agree.
    """
    for w in weights:
        if w.is_stack:
            raise ArgumentError("the weight is a stack of matrices; take one with layer(i)")
        if x.shape[-1] != w.shape[1]:
            raise ArgumentError(f"x is [..., {x.shape[-1]}] and the weight [{w.shape[0]}, {w.shape[1]}]; K must agree")
    nothing = jnp.zeros(0, jnp.float32)
    rows = x.reshape(-1, x.shape[-1])
    operands = [
        rows.astype(jnp.float32),
        jnp.zeros(0, jnp.int32) if positions is None else positions.reshape(-1),
        nothing if norm is None else norm,
        nothing if residual is None else residual.reshape(len(rows), -1),
        next((w.index for w in weights if w.index is not None), jnp.int32(0)),
    ]
    described: list[int] = []
    for w, bias in zip(weights, biases, strict=True):
        stacks, places = (w.stacks, w.places) if isinstance(w, MixedStack) else ((w,), ())
        described += [len(stacks), len(places), bias is not None]
        for stack in stacks:
            operands += [stack.planes[name] for name in planes.ORDER if name in stack.planes]
            described += _describe(stack.format, tuple(stack.planes))
        described += [number for place in places for number in place]
        operands += [] if bias is None else [bias]
    results = [jax.ShapeDtypeStruct((len(rows), w.shape[0]), jnp.float32) for w in weights]
    out = native_call(
        MATMUL,
        results[:1] if activation else results,
        operands,
        formats=np.array(described, np.int32),
        eps=np.float32(eps),
        gate=np.int32(_GATES[activation]),
        exact=any(w.exact for w in weights),
    )
    return [y.reshape(*x.shape[:-1], y.shape[-1]) for y in out]


@cache
def _describe(name: str, names: tuple[str, ...]) -> list[int]:
    """The struct Description of native/matmul.cc."""
    fmt = formats.PACKED.get(name)
    if fmt is None:
        return [0] * (10 + 16)  # no width of codes: a plain matrix
    low = planes.low_bits(fmt)
    numbers = [low, fmt.bits - low, fmt.block, fmt.group, fmt.offset, fmt.min_sign]
    has = [plane in names for plane in ("scales", "dmin", "mins")]
    return [*numbers, *has, fmt.codebook is not None, *(fmt.codebook or [0] * 16)]
