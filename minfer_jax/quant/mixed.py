"""MixedStack: equal matrices of different formats as one stack."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from minfer_jax.quant.formats import Array
from minfer_jax.quant.tensor import QuantTensor


@dataclass(frozen=True)
class MixedStack:
    """Matrices of one shape (N, K) whose formats differ from layer to layer, as in a Q4_K_M file.

    Native products look up a layer's matrix when they run, so that all layers are one loop of a program, traced and
    compiled once.

    stacks: tiled QuantTensors with a stacking axis, one for each format. places: of every layer, its stack and its
    index there (static). index: int32 scalar: this is only that layer; None: all.
    """

    stacks: tuple[QuantTensor, ...]
    places: tuple[tuple[int, int], ...]
    index: Array | None = None

    format = "mixed formats"
    implementation = "ffi"
    is_packed = is_tiled = True
    input_dtype: ClassVar[jnp.dtype] = jnp.dtype(jnp.float32)
    fragments = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.stacks[0].shape

    @property
    def is_stack(self) -> bool:
        """Whether this is more than one matrix."""
        return self.index is None

    @property
    def exact(self) -> bool:
        return self.stacks[0].exact

    @property
    def size(self) -> int:
        """Number of weights, all matrices together."""
        return (len(self.places) if self.index is None else 1) * math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return sum(stack.nbytes for stack in self.stacks)

    def layer(self, i: int | jax.Array) -> "MixedStack":
        """Matrix i >= 0; i may be traced."""
        return replace(self, index=jnp.asarray(i, jnp.int32))

    def values(self) -> jax.Array:
        """The weights [layers, N, K], exactly, in float32."""
        own = [self.stacks[stack].layer(i).values().astype(jnp.float32) for stack, i in self.places]
        return jnp.stack(own) if self.index is None else jnp.stack(own)[self.index]


Weight = QuantTensor | MixedStack

jax.tree_util.register_dataclass(MixedStack, ["stacks", "index"], ["places"])
