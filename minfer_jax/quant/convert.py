"""From the bytes of a GGUF file to the planes of a QuantTensor, fast and without a second copy of the file.

Blocks run through a small jitted program, a fixed number at a time whatever the tensor's shape, so that one compile
a format serves every tensor; results land in one preallocated array per plane.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.errors import UnsupportedError
from minfer_jax.gguf import RawTensor
from minfer_jax.quant import formats
from minfer_jax.quant.formats import Array, Format
from minfer_jax.quant.planes import TILE, pack
from minfer_jax.quant.tensor import QuantTensor

log = logging.getLogger("minfer_jax")

_PLAIN_NAMES = {dtype: name for name, dtype in formats.PLAIN.items()}

_CHUNK_WEIGHTS = 1 << 19


def to_stack(parts: Sequence[RawTensor], implementation: str, dtype: str) -> QuantTensor:
    """Equal matrices of a file, stacked: L raw tensors [N, K] of one type -> a QuantTensor with planes [L, N, ...].

    implementation: "dense" expands to dtype ("float32" or "bfloat16"); "xla" keeps the table's formats packed and
    plain types as they are. Types outside the table become float32 (dense float32) or else bfloat16.
    """
    name, planes = _planes(parts, implementation, jnp.dtype(dtype))
    return _put(name, planes, parts[0], implementation)


def to_tensor(part: RawTensor, implementation: str, dtype: str) -> QuantTensor:
    """One matrix, as :func:`to_stack` without the stacking axis."""
    name, planes = _planes([part], implementation, jnp.dtype(dtype))
    return _put(name, {plane: array[0] for plane, array in planes.items()}, part, implementation)


def to_vector(part: RawTensor) -> np.ndarray:
    """A norm weight or bias of any type as float32 values in the tensor's own shape."""
    return _values(part).astype(np.float32)


def _values(part: RawTensor) -> np.ndarray:
    """All values of a tensor at once, by the gguf library where they are not simply there."""
    plain = formats.PLAIN | {"F64": np.dtype(np.float64)}
    if part.type.name in plain:
        return part.data.view(plain[part.type.name])
    try:
        return gguf.quants.dequantize(part.data, part.type)
    except NotImplementedError:
        raise UnsupportedError(f"tensor {part.name}: type {part.type.name} cannot serve as a weight") from None


def _put(name: str, planes: dict[str, np.ndarray], like: RawTensor, implementation: str) -> QuantTensor:
    shape = (like.shape[0], like.shape[1])
    if implementation == "ffi":
        planes = {plane: _tiled(array) for plane, array in planes.items()}
    arrays = {plane: jax.device_put(array) for plane, array in planes.items()}
    return QuantTensor(arrays, name, shape, implementation)


def _tiled(plane: np.ndarray) -> np.ndarray:
    """[..., N, C] -> [..., ceil(N / 16), C, 16]."""
    *lead, n, c = plane.shape
    tiles = -(-n // TILE)
    out = _aligned_empty((*lead, tiles, c, TILE), plane.dtype)
    rows = out.swapaxes(-1, -2)
    whole = n // TILE
    rows[..., :whole, :, :] = plane[..., : whole * TILE, :].reshape(*lead, whole, TILE, c)
    if whole < tiles:
        rows[..., whole, : n % TILE, :] = plane[..., whole * TILE :, :]
        rows[..., whole, n % TILE :, :] = 0
    return out


def _planes(parts: Sequence[RawTensor], implementation: str, dense: np.dtype) -> tuple[str, dict[str, np.ndarray]]:
    """Format name and host arrays [L, N, ...] by plane."""
    name = parts[0].type.name
    if implementation != "dense" and name in formats.PACKED:
        fmt = formats.PACKED[name]
        outputs: dict[str, np.ndarray] = {}
        for i, part in enumerate(parts):
            _convert(fmt, part, _packer(fmt), outputs, i, len(parts))
        return name, outputs
    keep = dense
    if implementation != "dense":
        keep = formats.PLAIN.get(name, np.dtype(jnp.bfloat16))
    outputs = {"values": _aligned_empty((len(parts), *parts[0].shape), keep)}
    for i, part in enumerate(parts):  # layers of a mixed file may differ in type
        fmt = formats.PACKED.get(part.type.name)
        if fmt:
            _convert(fmt, part, _expander(fmt, dense), outputs, i, len(parts))
        else:
            if part.type.name not in formats.PLAIN:
                log.info("%s: type %s has no kernel here, expanded to %s", part.name, part.type.name, keep.name)
            outputs["values"][i] = _values(part)
    return _PLAIN_NAMES[keep], outputs


@cache
def _packer(fmt: Format) -> Callable[[Array], dict[str, Array]]:
    return jax.jit(lambda blocks: pack(fmt, fmt.split(blocks)))


@cache
def _expander(fmt: Format, dtype: np.dtype) -> Callable[[Array], dict[str, Array]]:
    return jax.jit(lambda blocks: {"values": formats.dequantize(fmt, fmt.split(blocks)).astype(dtype)})


def _convert(
    fmt: Format,
    part: RawTensor,
    program: Callable[[Array], dict[str, Array]],
    outputs: dict[str, np.ndarray],
    index: int,
    count: int,
) -> None:
    """Run one tensor's blocks through ``program`` into place ``index`` of ``count`` in each output [L, N, per row].

    The program always sees the same number of blocks, so that it compiles once for a format.
    """
    blocks = part.data.reshape(-1, fmt.block_bytes)
    size = _CHUNK_WEIGHTS // fmt.block
    rows, blocks_per_row = part.shape[0], part.shape[1] // fmt.block
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for start in range(0, len(blocks), size):
            chunk = blocks[start : start + size]
            n = len(chunk)
            if n < size:
                chunk = np.concatenate([chunk, np.zeros((size - n, fmt.block_bytes), np.uint8)])
            for name, done in program(chunk[:, None, :]).items():
                per_block = done.shape[-1]
                if name not in outputs:
                    outputs[name] = _aligned_empty((count, rows, blocks_per_row * per_block), done.dtype)
                outputs[name][index].reshape(-1, per_block)[start : start + n] = np.asarray(done)[:n]


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array on a 64-byte boundary: the CPU backend then takes it over without a copy."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + nbytes].view(dtype).reshape(shape)
