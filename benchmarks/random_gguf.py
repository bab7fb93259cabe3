"""GGUF files with random weights in the shapes of real models, for speed alone: they say nothing sensible.

python -m benchmarks.random_gguf OUT.gguf qwen2.5-0.5b q4_0
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool


SIZES = {
    "qwen2.5-0.5b": Sizes(24, 896, 4864, 14, 2, 151936, True),
    "qwen2.5-1.5b": Sizes(28, 1536, 8960, 12, 2, 151936, True),
    "qwen2.5-7b": Sizes(28, 3584, 18944, 28, 4, 152064, False),
}

Q4_0, Q8_0, Q4_K, Q6_K = (GGMLQuantizationType[name] for name in ("Q4_0", "Q8_0", "Q4_K", "Q6_K"))
# (most matrices, half of attn_v and ffn_down, tied embedding), in the manner of llama-quantize.
MIXES = {"q4_0": (Q4_0, Q4_0, Q8_0), "q4_k_m": (Q4_K, Q6_K, Q6_K)}

# Where a block's float16 scales stand, and how large its integers are: scales are chosen to keep activations near 1.
_SCALES = {Q4_0: ((0,), 4.0), Q8_0: ((0,), 64.0), Q4_K: ((0, 2), 300.0), Q6_K: ((208,), 300.0)}


def write(path: Path, size: str, mix: str, context: int = 32768) -> None:
    """Write a qwen2 file; see SIZES and MIXES for the names."""
    s = SIZES[size]
    most, some, embedding = MIXES[mix]
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(s.layers)
    writer.add_context_length(context)
    writer.add_embedding_length(s.width)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(["t", "0", *(f"t{i}" for i in range(s.vocab - 2))])
    writer.add_token_types([1] * s.vocab)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(s.vocab - 2)
    writer.add_eos_token_id(s.vocab - 1)
    writer.add_add_bos_token(False)

    def matrix(name: str, rows: int, columns: int, kind: GGMLQuantizationType) -> None:
        if columns % GGML_QUANT_SIZES[kind][0]:
            kind = Q8_0  # as llama-quantize falls back for rows that are no multiple of 256
        writer.add_tensor(f"{name}.weight", _blocks(rng, rows, columns, kind), raw_dtype=kind)

    def vector(name: str, values: np.ndarray) -> None:
        writer.add_tensor(name, values.astype(np.float32))

    matrix("token_embd", s.vocab, s.width, embedding if s.tied else most)
    if not s.tied:
        matrix("output", s.vocab, s.width, Q6_K)
    vector("output_norm.weight", np.ones(s.width))
    kv = s.width // s.heads * s.kv_heads
    for i in range(s.layers):
        better = some if i < s.layers // 2 else most
        vector(f"blk.{i}.attn_norm.weight", np.ones(s.width))
        vector(f"blk.{i}.ffn_norm.weight", np.ones(s.width))
        for name, rows, kind in (("q", s.width, most), ("k", kv, most), ("v", kv, better)):
            matrix(f"blk.{i}.attn_{name}", rows, s.width, kind)
            vector(f"blk.{i}.attn_{name}.bias", 0.01 * rng.standard_normal(rows))
        matrix(f"blk.{i}.attn_output", s.width, s.width, most)
        matrix(f"blk.{i}.ffn_gate", s.ffn, s.width, most)
        matrix(f"blk.{i}.ffn_up", s.ffn, s.width, most)
        matrix(f"blk.{i}.ffn_down", s.width, s.ffn, better)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(rng: np.random.Generator, rows: int, columns: int, kind: GGMLQuantizationType) -> np.ndarray:
    per_block, n_bytes = GGML_QUANT_SIZES[kind]
    n = rows * columns // per_block
    some = rng.integers(0, 256, (min(n, 1 << 16), n_bytes), dtype=np.uint8)
    blocks = np.resize(some, (n, n_bytes))
    places, largest = _SCALES[kind]
    scale = np.frombuffer(np.float16(1 / (np.sqrt(columns) * largest)).tobytes(), np.uint8)
    for place in places:
        blocks[:, place : place + 2] = scale
    return blocks.reshape(rows, columns // per_block * n_bytes)


def main() -> None:
    path, size, mix = sys.argv[1:]
    write(Path(path), size, mix)


if __name__ == "__main__":
    main()
