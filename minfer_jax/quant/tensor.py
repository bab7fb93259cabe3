"""QuantTensor: one weight matrix (or a stack of equal ones) as a pytree of planes."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from minfer_jax.quant import formats
from minfer_jax.quant.formats import Array
from minfer_jax.quant.fragments import Fragments
from minfer_jax.quant.planes import TILE, unpack, untile


def lanes_of(implementation: str) -> int:
    """Rows in a tile of the planes laid out for an implementation; 1 where planes are not tiled."""
    return TILE if implementation == "ffi" else 1


def layer_of(stack: Array, i: int | Array) -> Array:
    """Element i >= 0 of a stack of arrays; i may be traced. XLA then hands a product a place in the stack; a negative
    index, which means another one, would make it copy."""
    if isinstance(i, int):
        return stack[i]
    return jax.lax.dynamic_index_in_dim(stack, i, keepdims=False, allow_negative_indices=False)


@dataclass(frozen=True)
class QuantTensor:
    """A matrix of N rows (outputs) and K columns (inputs), ``y = x @ w.T``, in one of the formats of the table.

    planes: arrays by name; a plain format has the one plane ``values`` [..., N, K], a packed one those of
        :mod:`~minfer_jax.quant.planes`, each [..., N, C], or [..., ceil(N / 16), C, 16] where tiled. Axes in front
        stack equal matrices (layers).
    format: name in ``formats.PACKED`` or ``formats.PLAIN`` (static).
    shape: (N, K) of one matrix (static).
    implementation: which matrix product it was laid out for, see ``matmul.IMPLEMENTATIONS`` (static).
    exact: native products keep the input in float32, in place of 16-bit integers (static).
    index: int32 scalar, or a number: this is only that matrix of the stack that the planes hold; None: all of it.
    fragments: the same matrix packed for GPU kernels, which take the input of decode steps; the planes serve others.
    """

    planes: dict[str, Array]
    format: str
    shape: tuple[int, int]
    implementation: str
    exact: bool = False
    index: Array | int | None = None
    fragments: Fragments | None = None

    @property
    def is_packed(self) -> bool:
        """Whether it is of a packed format, not of plain numbers."""
        return self.format in formats.PACKED

    @property
    def is_stack(self) -> bool:
        """Whether this is more than one matrix."""
        plane = self.planes["codes" if self.is_packed else "values"]
        return self.index is None and plane.ndim > (3 if self.is_tiled else 2)

    @property
    def row_step(self) -> int:
        """What ``start`` and ``size`` of :meth:`rows` must be multiples of."""
        return lanes_of(self.implementation)

    @property
    def is_tiled(self) -> bool:
        """Whether its planes are laid out for the native kernels."""
        return self.row_step > 1

    @property
    def input_dtype(self) -> jnp.dtype:
        """What products round their input to, before they accumulate in float32."""
        return jnp.dtype(self.planes["values"].dtype if self.implementation in ("dense", "pallas") else jnp.float32)

    @property
    def size(self) -> int:
        """Number of weights, all stacked matrices together."""
        plane = self.planes["codes" if self.is_packed else "values"]
        stacked = plane.shape[: -3 if self.is_tiled else -2] if self.index is None else ()
        return math.prod(stacked) * math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all that it holds, with the padding of tiles."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.planes, self.fragments)))

    def layer(self, i: int | jax.Array) -> "QuantTensor":
        """Matrix i >= 0 of a stack; i may be traced. Planes are not sliced before they are used, since kernels take the
        whole stack."""
        index = jnp.asarray(i, jnp.int32) if self.is_tiled else i
        return replace(self, index=index, fragments=self.fragments and self.fragments.layer(i))

    def values(self) -> jax.Array:
        """The weights [..., N, K] exactly: float32 from a packed format, else in the plain format's own dtype."""
        planes = self._own_planes()
        if self.is_tiled:
            planes = {name: untile(plane, self.shape[0]) for name, plane in planes.items()}
        return self._dequantize(planes)

    def rows(self, start: int | jax.Array, size: int) -> "QuantTensor":
        """Rows start .. start + size of one matrix (no stacking axes); start may be traced.

        Both are multiples of ``row_step``; with tiles the range may take in their padding, rows of zeros.
        """
        step = self.row_step
        cut = {
            name: jax.lax.dynamic_slice_in_dim(plane, start // step, size // step, 0)
            for name, plane in self._own_planes().items()
        }
        return replace(self, planes=cut, shape=(size, self.shape[1]), index=None, fragments=None)

    def take(self, ids: jax.Array) -> jax.Array:
        """Rows by id, dequantised: [...] int32 -> [..., K] float32. Only those rows are ever expanded."""
        ids = jnp.clip(ids, 0, self.shape[0] - 1)
        at = (ids // TILE, slice(None), ids % TILE) if self.is_tiled else ids
        return self._dequantize({name: plane[at] for name, plane in self._own_planes().items()}).astype(jnp.float32)

    def _own_planes(self) -> dict[str, Array]:
        return self.planes if self.index is None else {name: layer_of(p, self.index) for name, p in self.planes.items()}

    def _dequantize(self, planes: dict[str, Array]) -> jax.Array:
        """Planes [..., C] -> weights [..., K]."""
        if not self.is_packed:
            return planes["values"]
        fmt = formats.PACKED[self.format]
        return formats.dequantize(fmt, unpack(fmt, planes))


jax.tree_util.register_dataclass(
    QuantTensor, ["planes", "index", "fragments"], ["format", "shape", "implementation", "exact"]
)
