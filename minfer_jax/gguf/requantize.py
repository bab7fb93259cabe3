"""A model's file in another quantisation: the same metadata, byte for byte, around other weights."""

import logging
import math
import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_MAGIC, GGUF_VERSION, GGMLQuantizationType, GGUFValueType, LlamaFileType
from gguf.constants import GGML_QUANT_VERSION
from gguf.quants import dequantize, quantize

from minfer_jax import hub
from minfer_jax.errors import NumericsError, UnsupportedError, naming
from minfer_jax.files import check_target, written_whole
from minfer_jax.gguf.cursor import shown
from minfer_jax.gguf.file import GGUFFile, open_gguf
from minfer_jax.gguf.header import DEFAULT_ALIGNMENT
from minfer_jax.gguf.tensors import RawTensor
from minfer_jax.progress import progress_bar

log = logging.getLogger("minfer_jax")

_T = GGMLQuantizationType
_FLOATS = frozenset({_T.F32, _T.F16, _T.BF16})
_NUMBERS = frozenset({_T.F64, _T.I8, _T.I16, _T.I32, _T.I64})  # which nothing quantises
_FILE_TYPE, _QUANTISATION_VERSION = "general.file_type", "general.quantization_version"
_WEIGHTS_AT_ONCE = 1 << 22
_LARGEST_F16 = 65504.0  # of the scales of blocks, too


@cache
def writable_types() -> tuple[str, ...]:
    """Names of the types that the `gguf` library can quantise to."""
    names = []
    for kind, (block, _) in GGML_QUANT_SIZES.items():
        try:
            quantize(np.zeros((1, block), np.float32), kind)
        except NotImplementedError:
            continue
        names.append(kind.name)
    return tuple(names)


def requantize(
    source: str | Path, target: str | os.PathLike[str], type: str, *, progress: bool | None = None
) -> GGUFFile:
    """Write a model with its matrices in another type, and open what was written.

    source: a path or a name, as for ``load``; the parts of a split model become one file. target: replaced if it is
        there, and written whole or not at all. type: one of :func:`writable_types`, such as "Q4_0", in upper or lower
        case. progress: show a bar; None: on a terminal.

    Every tensor of two or more dimensions becomes ``gguf.quants.quantize(gguf.quants.dequantize(tensor), type)``; but
    the head (or the embedding that is one) becomes Q8_0 where ``type`` has fewer bits, for llama-quantize spares it,
    too. A vector stays as it is, so does a tensor of that type already, and, with a warning, one whose rows are no
    whole number of blocks. These types round each block by itself, without looking at data; and what the source's own
    quantisation has lost stays lost.

    Raises GGUFError, UnsupportedError (source, or a type that cannot be written), ArgumentError (target is the source),
    NumericsError (a weight that is not finite or too large for the type), MinferError (target cannot be written).
    """
    kind = _writable(type)
    file = open_gguf(hub.resolve(source))
    path = check_target(target, *file.paths)
    kinds = {name: _wanted(tensor, kind, file) for name, tensor in file.tensors.items()}
    if left := [name for name, wanted in kinds.items() if file.tensors[name].shape[-1] % GGML_QUANT_SIZES[wanted][0]]:
        kinds |= {name: file.tensors[name].type for name in left}
        what = "1 matrix stays" if len(left) == 1 else f"{len(left)} matrices stay"
        log.warning("%s: %s as in the source, such as %s: its rows are no whole blocks", file.name, what, left[0])
    alignment = int(file.metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    with progress_bar("requantising", file.n_parameters, "weight", progress) as bar, written_whole(path) as out:
        header = _header(file, kind, kinds, alignment)
        out.write(header + bytes(-len(header) % alignment))
        for name, tensor in file.tensors.items():
            size = 0
            with naming(file.name):
                for data in _converted(tensor, kinds[name]):
                    out.write(data)
                    size += len(data)
            out.write(bytes(-size % alignment))
            tensor.release()
            bar.update(math.prod(tensor.shape))
    return open_gguf(path)


def _writable(name: str) -> GGMLQuantizationType:
    if not isinstance(name, str) or name.upper() not in writable_types():
        raise UnsupportedError(f"type is {name!r:.40}; types that can be written: {', '.join(writable_types())}")
    return GGMLQuantizationType[name.upper()]


def _wanted(tensor: RawTensor, kind: GGMLQuantizationType, file: GGUFFile) -> GGMLQuantizationType:
    """The type that a tensor should have."""
    if len(tensor.shape) < 2 or tensor.type in _NUMBERS:
        return tensor.type
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    return _T.Q8_0 if tensor.name == head and _bits(kind) < _bits(_T.Q8_0) else kind


def _bits(kind: GGMLQuantizationType) -> float:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return 8 * block_bytes / block


def _converted(tensor: RawTensor, kind: GGMLQuantizationType) -> Iterator[bytes]:
    """The bytes of a tensor, some rows at a time."""
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, _WEIGHTS_AT_ONCE // tensor.shape[-1])
    for start in range(0, len(rows), step):
        data = rows[start : start + step]
        if kind != tensor.type:
            weights = dequantize(data, tensor.type)
            largest = np.abs(weights).max()
            if not largest <= (np.inf if kind in (_T.F32, _T.BF16) else _LARGEST_F16):
                raise NumericsError(f"tensor {shown(tensor.name)} holds {largest:g}, for which {kind.name} has no room")
            data = quantize(weights, kind)
        yield data.tobytes()


def _header(
    file: GGUFFile,
    kind: GGMLQuantizationType,
    kinds: dict[str, GGMLQuantizationType],
    alignment: int,
) -> bytes:
    """All that stands before the weights."""
    dropped = {_FILE_TYPE, _QUANTISATION_VERSION}
    pairs = [file.pair_bytes(key) for key in file.pairs if key not in dropped and not key.startswith("split.")]
    file_type = getattr(LlamaFileType, f"MOSTLY_{kind.name}", None)
    if kind is _T.F32:
        file_type = LlamaFileType.ALL_F32
    if file_type is not None:
        pairs.append(_u32_pair(_FILE_TYPE, file_type))
    if any(written not in _FLOATS | _NUMBERS for written in kinds.values()):
        pairs.append(_u32_pair(_QUANTISATION_VERSION, GGML_QUANT_VERSION))
    table = []
    offset = 0
    for name, tensor in file.tensors.items():
        block, block_bytes = GGML_QUANT_SIZES[kinds[name]]
        dims = tensor.shape[::-1]
        table.append(_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kinds[name], offset))
        size = math.prod(tensor.shape) // block * block_bytes
        offset += size + -size % alignment
    counts = struct.pack("<IIQQ", GGUF_MAGIC, GGUF_VERSION, len(table), len(pairs))
    return b"".join([counts, *pairs, *table])


def _u32_pair(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", GGUFValueType.UINT32, value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
