"""Fragments: packed matrices in the order that the GPU kernels of ``pallas_kernels`` read, and products with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import pallas_kernels.quantised_matmul as kernels
from minfer_jax.gguf import RawTensor
from minfer_jax.quant import formats
from pallas_kernels.quantised_matmul.layout import ROWS

MOST_ROWS = 16
"""Rows of a decode step up to which the kernels are used: at 4 bits they then read less than expanded weights are."""


@dataclass(frozen=True)
class Fragments:
    """One matrix, or several that share their input, one below the other.

    words: uint32 [..., tiles, words], see ``pallas_kernels.quantised_matmul``; an axis in front stacks layers.
    layout: of the words (static). Of a gate and what it gates the tiles take turns.
    norm: float32 [..., K], the weight of an RMSNorm of their input, or None. bias: float32 [..., N], or None.
    index: int32 scalar, this is only that layer.
    """

    words: jax.Array
    layout: kernels.Layout
    norm: jax.Array | None = None
    bias: jax.Array | None = None
    index: jax.Array | int | None = None

    def layer(self, i: jax.Array | int) -> "Fragments":
        """Layer i of a stack, which is not sliced."""
        return replace(self, index=i)

    def product(
        self,
        x: jax.Array,
        *,
        eps: float = 0.0,
        activation: str | None = None,
        residual: jax.Array | None = None,
    ) -> jax.Array:
        """As ``models.linear.linear`` with these weights, norm and bias: x [..., K] float32 -> [..., N]."""
        rows = x.reshape(-1, x.shape[-1])
        y = kernels.quantised_matmul(
            self.layout,
            self.words,
            rows,
            layer=self.index,
            norm=self.norm,
            eps=eps,
            gate=activation,
            bias=self.bias,
            residual=None if residual is None else residual.reshape(len(rows), -1),
        )
        return y.reshape(*x.shape[:-1], -1)


jax.tree_util.register_dataclass(Fragments, ["words", "norm", "bias", "index"], ["layout"])


def is_step(x: jax.Array) -> bool:
    """Whether an input [B, 1, K] is that of a decode step."""
    return x.ndim == 3 and x.shape[1] == 1


def takes(x: jax.Array) -> bool:
    """Whether the kernels are for such inputs: [B, 1, K], those of a decode step, of few rows. How many tokens a prompt
    has does not decide, since the same text may come padded: the runtime gives it two columns at least."""
    return is_step(x) and x.shape[0] <= MOST_ROWS


def can_pack(stack: Sequence[Sequence[RawTensor]]) -> bool:
    """Whether :func:`to_fragments` can: all of one type that has kernels, and whole tiles where several become one."""
    parts = [part for parts in stack for part in parts]
    is_whole = len(stack[0]) == 1 or all(part.shape[0] % ROWS == 0 for part in parts)
    return len({part.type for part in parts}) == 1 and parts[0].type.name in kernels.FORMATS and is_whole


def to_fragments(
    stack: Sequence[Sequence[RawTensor]],
    norm: jax.Array | None = None,
    biases: Sequence[jax.Array] = (),
    gated: bool = False,
) -> Fragments:
    """Of every layer, matrices of one type that become one; ``gated``: two, of which the first gates the second.
    norm: float32 [layers, K], of their input. biases: float32 [layers, N] of each."""
    first = stack[0][0]
    rows = first.shape[0] if gated else sum(part.shape[0] for part in stack[0])
    layout = kernels.Layout(first.type.name, rows, first.shape[1])
    join = kernels.interleave if gated else lambda *words: jnp.concatenate(words, -2)
    words = jnp.stack([join(*(_words(part) for part in parts)) for parts in stack])
    return Fragments(words, layout, norm, jnp.concatenate(biases, -1) if biases else None)


def _words(part: RawTensor) -> jax.Array:
    """On the device, which is faster at it."""
    fmt = formats.PACKED[part.type.name]
    blocks = jnp.asarray(np.asarray(part.data).reshape(part.shape[0], -1, fmt.block_bytes))
    return _packer(part.type.name, part.shape[0], part.shape[1])(blocks)


@cache
def _packer(name: str, rows: int, columns: int):
    layout = kernels.Layout(name, rows, columns)

    def pack(blocks: jax.Array) -> jax.Array:
        f = formats.PACKED[name].split(blocks)
        return kernels.pack(layout, kernels.Fields(f.codes, f.d, f.scales, f.dmin, f.mins))

    return jax.jit(pack)
