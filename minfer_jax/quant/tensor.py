"""QuantTensor: one weight matrix (or a stack of equal ones) as a pytree of planes."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from minfer_jax.quant import formats
from minfer_jax.quant.formats import Array
from minfer_jax.quant.planes import unpack


@dataclass(frozen=True)
class QuantTensor:
    """A matrix of N rows (outputs) and K columns (inputs), ``y = x @ w.T``, in one of the formats of the table.

    planes: arrays by name; a plain format has the one plane ``values`` [..., N, K], a packed one those of
        :mod:`~minfer_jax.quant.planes`, each [..., N, something]. Axes in front of N stack equal matrices (layers).
    format: name in ``formats.PACKED`` or ``formats.PLAIN`` (static).
    shape: (N, K) of one matrix (static).
    implementation: which matrix product it was laid out for, see ``matmul.IMPLEMENTATIONS`` (static).
    """

    planes: dict[str, Array]
    format: str
    shape: tuple[int, int]
    implementation: str

    @property
    def is_packed(self) -> bool:
        return self.format in formats.PACKED

    @property
    def size(self) -> int:
        """Number of weights, all stacked matrices together."""
        plane = self.planes["codes" if self.is_packed else "values"]
        return math.prod(plane.shape[:-2]) * math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all planes hold."""
        return sum(plane.nbytes for plane in self.planes.values())

    def values(self) -> jax.Array:
        """The weights [..., N, K] exactly: float32 from a packed format, else in the plain format's own dtype."""
        if not self.is_packed:
            return self.planes["values"]
        fmt = formats.PACKED[self.format]
        return formats.dequantize(fmt, unpack(fmt, self.planes))

    def rows(self, start: int | jax.Array, size: int) -> "QuantTensor":
        """Rows start .. start + size of one matrix (no stacking axes); start may be traced."""
        cut = {k: jax.lax.dynamic_slice_in_dim(p, start, size, 0) for k, p in self.planes.items()}
        return replace(self, planes=cut, shape=(size, self.shape[1]))

    def take(self, ids: jax.Array) -> jax.Array:
        """Rows by id, dequantised: [...] int32 -> [..., K] float32. Only those rows are ever expanded."""
        gathered = {k: jnp.take(p, ids, axis=0, mode="clip") for k, p in self.planes.items()}
        return replace(self, planes=gathered).values().astype(jnp.float32)


jax.tree_util.register_dataclass(QuantTensor, ["planes"], ["format", "shape", "implementation"])
