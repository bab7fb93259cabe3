"""Writes a tiny random GGUF file, and its twin in which every quantised tensor is expanded to float32."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

from .cases import Case
from .weights import tensors


def _write_value(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))  # type: ignore[call-overload]


def _metadata(case: Case) -> dict[str, object]:
    values: dict[str, object] = {
        "vocab_size": case.vocab.size,
        "context_length": case.context,
        "embedding_length": case.d_model,
        "block_count": case.n_layers,
        "feed_forward_length": case.d_ff,
        "attention.head_count": case.n_heads,
        "attention.head_count_kv": case.n_kv_heads,
        "attention.layer_norm_rms_epsilon": case.eps,
        "rope.freq_base": case.rope_base,
    }
    if case.explicit_head_dim:
        values |= {
            "attention.key_length": case.head_dim,
            "attention.value_length": case.head_dim,
            "rope.dimension_count": case.head_dim,
        }
    return values | dict(case.extra)


def write_tiny(case: Case, path: str | Path, *, expanded: bool = False) -> Path:
    """Write the file of `case` to `path`; `expanded=True` writes the float32 twin with the very same values.

    The twin is for an oracle whose kernels round activations when a weight is quantised.
    """
    writer = GGUFWriter(path, case.arch)
    # No model family in the name: llama.cpp expects the real vocabulary of a file that calls itself phi3.
    writer.add_name("tiny random weights")
    for key, value in _metadata(case).items():
        _write_value(writer, f"{case.arch}.{key}", value)
    case.vocab.write(writer)
    for name, data, kind in tensors(case):
        if kind == GGMLQuantizationType.F32:
            writer.add_tensor(name, data)
        elif expanded:
            writer.add_tensor(name, np.ascontiguousarray(dequantize(data, kind), np.float32))
        else:
            writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
