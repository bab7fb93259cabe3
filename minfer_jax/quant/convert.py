"""From the bytes of a GGUF file to the planes of a QuantTensor, fast and without a second copy of the file.

Blocks run through a small jitted program, a fixed number at a time whatever the tensor's shape, so that one compile
a format serves every tensor; results land in one preallocated array per plane, and the file's pages are let go as
they are done with. All is written as tiles of ``lanes`` rows, [tiles, C, lanes]; planes in rows are tiles of one.
"""

import math
import mmap
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.errors import UnsupportedError
from minfer_jax.gguf import RawTensor
from minfer_jax.quant import formats
from minfer_jax.quant.formats import Array, Format
from minfer_jax.quant.fragments import can_pack, to_fragments
from minfer_jax.quant.mixed import MixedStack
from minfer_jax.quant.planes import pack
from minfer_jax.quant.tensor import QuantTensor, lanes_of

Program = Callable[[Array], dict[str, Array]]
"""Blocks [n, lanes, block bytes] uint8 -> planes [n, per block, lanes]."""

_PLAIN_NAMES = {dtype: name for name, dtype in formats.PLAIN.items()}

_CHUNK_WEIGHTS = 1 << 19

_GPU_DTYPE = "float16"


def to_stack(
    parts: Sequence[RawTensor], implementation: str, dtype: str, apart: bool = True
) -> QuantTensor | MixedStack:
    """Equal matrices of a file, stacked: L raw tensors [N, K] -> a QuantTensor with planes [L, ...]. Their types may
    differ with "dense", and with "ffi", which then gives a MixedStack.

    implementation: "dense" expands to dtype, such as "float32"; "xla" and "ffi" keep the table's formats packed and
    plain types as they are, "ffi" in tiles; types outside the table become float32. "pallas" expands to float16 and
    keeps fragments as well, unless not ``apart``: then others hold them.
    """
    types = list(dict.fromkeys(part.type for part in parts))
    if implementation == "ffi" and len(types) > 1:
        places, groups = [], {type: [] for type in types}
        for part in parts:
            places.append((types.index(part.type), len(groups[part.type])))
            groups[part.type].append(part)
        return MixedStack(tuple(_stack(group, implementation, dtype) for group in groups.values()), tuple(places))
    if implementation == "pallas":
        return _for_gpu(_stack(parts, "dense", _GPU_DTYPE), parts if apart else [])
    return _stack(parts, implementation, dtype)


def _stack(parts: Sequence[RawTensor], implementation: str, dtype: str) -> QuantTensor:
    name, planes = _planes(parts, implementation, jnp.dtype(dtype))
    shape = (parts[0].shape[0], parts[0].shape[1])
    return QuantTensor({k: jax.device_put(plane) for k, plane in planes.items()}, name, shape, implementation)


def to_tensor(part: RawTensor, implementation: str, dtype: str, multiplies: bool = True) -> QuantTensor:
    """One matrix, as :func:`to_stack` without the stacking axis; multiplies: not only a table to look up rows in."""
    if implementation == "pallas":
        expanded = to_tensor(part, "dense", _GPU_DTYPE)
        return _for_gpu(expanded, [part] if multiplies else [])
    name, planes = _planes([part], implementation, jnp.dtype(dtype))
    shape = (part.shape[0], part.shape[1])
    return QuantTensor({k: jax.device_put(plane[0]) for k, plane in planes.items()}, name, shape, implementation)


def _for_gpu(expanded: QuantTensor, parts: Sequence[RawTensor]) -> QuantTensor:
    """The same with fragments of ``parts``, if there are any, and all layers agree in a type that has kernels."""
    stack = [[part] for part in parts]
    fragments = to_fragments(stack) if stack and can_pack(stack) else None
    if fragments is not None and not expanded.is_stack:
        fragments = replace(fragments, words=fragments.words[0])
    return replace(expanded, implementation="pallas", fragments=fragments)


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


def _planes(parts: Sequence[RawTensor], implementation: str, dense: np.dtype) -> tuple[str, dict[str, np.ndarray]]:
    """Format name and host arrays by plane, with the stacking axis in front."""
    name, lanes = parts[0].type.name, lanes_of(implementation)
    packed = implementation != "dense" and name in formats.PACKED
    keep = dense if implementation == "dense" else formats.PLAIN.get(name, np.dtype(np.float32))
    outputs: dict[str, np.ndarray] = {}
    for i, part in enumerate(parts):  # with dense, layers may differ in type
        fmt = formats.PACKED.get(part.type.name)
        if fmt:
            program = _packer(fmt) if packed else _expander(fmt, dense)
            _convert(fmt, part, program, lanes, outputs, i, len(parts))
        else:
            _copy(part, keep, lanes, outputs, i, len(parts))
    n = parts[0].shape[0]
    for plane in outputs.values():
        plane[:, n // lanes :, :, n % lanes :] = 0
    if lanes == 1:
        outputs = {plane: array[..., 0] for plane, array in outputs.items()}
    return name if packed else _PLAIN_NAMES[keep], outputs


@cache
def _packer(fmt: Format) -> Program:
    return _tile_program(lambda blocks: pack(fmt, fmt.split(blocks)))


@cache
def _expander(fmt: Format, dtype: np.dtype) -> Program:
    return _tile_program(lambda blocks: {"values": formats.dequantize(fmt, fmt.split(blocks)).astype(dtype)})


def _tile_program(convert: Program) -> Program:
    """``convert`` takes runs of blocks [..., 1, block bytes] to planes [..., per block]."""
    return jax.jit(lambda blocks: {k: plane.swapaxes(1, 2) for k, plane in convert(blocks[:, :, None]).items()})


def _convert(
    fmt: Format,
    part: RawTensor,
    program: Program,
    lanes: int,
    outputs: dict[str, np.ndarray],
    index: int,
    count: int,
) -> None:
    """Run one tensor's blocks through ``program`` into place ``index`` of ``count`` in each output.

    The program always sees the same number of blocks, so that it compiles once for a format; those of rows beyond
    the last are the last block again.
    """
    blocks = part.data.reshape(-1, fmt.block_bytes)
    size = _CHUNK_WEIGHTS // (fmt.block * lanes)
    tiles, per_row = -(-part.shape[0] // lanes), part.shape[1] // fmt.block
    chunk = np.empty((size, lanes, fmt.block_bytes), np.uint8)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for start in range(0, tiles * per_row, size):
            tile, column = np.divmod(np.arange(start, start + size)[:, None], per_row)
            blocks.take((tile * lanes + np.arange(lanes)) * per_row + column, 0, out=chunk, mode="clip")
            for name, done in program(chunk).items():
                per_block = done.shape[1]
                if name not in outputs:
                    outputs[name] = _pages((count, tiles, per_row * per_block, lanes), done.dtype)
                place = outputs[name][index].reshape(-1, per_block, lanes)[start : start + size]
                place[...] = np.asarray(done)[: len(place)]
            part.release()


def _copy(part: RawTensor, dtype: np.dtype, lanes: int, outputs: dict[str, np.ndarray], index: int, count: int) -> None:
    """The same for a tensor whose values are simply there, or made all at once."""
    values = _values(part)
    n, k = part.shape
    if "values" not in outputs:
        outputs["values"] = _pages((count, -(-n // lanes), k, lanes), dtype)
    rows = outputs["values"][index].swapaxes(1, 2)  # [tiles, lanes, K]
    whole = n - n % lanes
    rows[: n // lanes] = values[:whole].reshape(-1, lanes, k)
    rows[n // lanes :, : n % lanes] = values[whole:]
    part.release()


def _pages(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array on pages of its own: aligned, so that the CPU backend takes it over without a copy, and given back to
    the system at once when nobody needs it."""
    pages = mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8).view(dtype).reshape(shape)
