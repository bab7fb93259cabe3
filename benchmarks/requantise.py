"""A model's file in Q4_0, from whatever it is in: every matrix Q4_0, the head (or the embedding that is it) Q8_0, the
rest as it is.

llama-quantize makes the head Q6_K, which gguf-py cannot write; Q8_0 is the nearest that it can.
"""

import os
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from minfer_jax.env import cache_dir


def q4_0(source: Path) -> Path:
    """The file, which is kept in the package's cache folder."""
    target = cache_dir() / "benchmarks" / f"{source.stem}.requantised-q4_0.gguf"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    unfinished = target.with_suffix(f".{os.getpid()}")
    writer = GGUFWriter(unfinished, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0)
    names = {tensor.name for tensor in reader.tensors}
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if len(tensor.shape) == 2:
            values = dequantize(data, kind)
            kind = GGMLQuantizationType.Q8_0 if tensor.name == head else GGMLQuantizationType.Q4_0
            data = quantize(values, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(target)
    return target
