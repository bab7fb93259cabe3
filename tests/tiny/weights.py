"""Random weights that are the same everywhere, and random quantised blocks of the types `gguf` can decode."""

import zlib
from collections.abc import Iterator

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

from .cases import Case

_ENCODABLE = {T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0}
# Byte offsets of the 16-bit block scale, and of the 16-bit block minimum where the type has one.
_SCALES = {
    T.Q2_K: (80, 82),
    T.Q3_K: (108, None),
    T.Q4_K: (0, 2),
    T.Q5_K: (0, 2),
    T.Q6_K: (208, None),
    T.IQ4_NL: (0, None),
    T.IQ4_XS: (0, None),
    T.TQ2_0: (64, None),
}
# The mean code of Q2_K, Q4_K and Q5_K: a minimum of this many scales centres the block on zero.
_CENTRE = {T.Q2_K: 1.5, T.Q4_K: 7.5, T.Q5_K: 15.5}


def _uniform(label: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> np.ndarray:
    # random_sample of the frozen RandomState generator is exact arithmetic: the same bits on every machine.
    state = np.random.RandomState(zlib.crc32(label.encode()))
    return (mean + std * np.sqrt(12.0) * (state.random_sample(shape) - 0.5)).astype(np.float32)


def _random_blocks(label: str, shape: tuple[int, ...], kind: T, std: float) -> np.ndarray:
    # For the types that `gguf` cannot encode: random codes, with block scales that give the wanted spread.
    state = np.random.RandomState(zlib.crc32(label.encode()))
    block, size = GGML_QUANT_SIZES[kind]
    raw = state.randint(0, 256, size=(int(np.prod(shape)) // block, size)).astype(np.uint8)
    if kind == T.MXFP4:
        raw[:, 0] = 127 + int(np.round(np.log2(std / 3.6))) + state.randint(-1, 2, size=len(raw))
    else:
        at, minimum = _SCALES[kind]
        spread = state.random_sample(len(raw)) + 0.5

        def put(unit: float) -> None:
            raw[:, at : at + 2] = (spread * unit).astype("<f2").view(np.uint8).reshape(-1, 2)
            if minimum is not None:
                centre = (spread * unit * _CENTRE[kind]).astype("<f2")
                raw[:, minimum : minimum + 2] = centre.view(np.uint8).reshape(-1, 2)

        put(2.0**-6)
        put(2.0**-6 * std / float(dequantize(raw, kind).std()))
    return raw.reshape(*shape[:-1], -1)


def draw(label: str, shape: tuple[int, ...], kind: T, std: float = 1.0, mean: float = 0.0) -> np.ndarray:
    """A random tensor as a file holds it: numbers, or bytes in rows. Types that gguf cannot encode have mean 0."""
    if kind == T.F32:
        return _uniform(label, shape, std, mean)
    if kind in _ENCODABLE:
        return quantize(_uniform(label, shape, std, mean), kind)
    return _random_blocks(label, shape, kind, std)


def _shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """Name, shape (last axis contiguous), standard deviation and mean of every tensor but the rope ones."""
    d, ff = case.d_model, case.d_ff
    q, kv = case.n_heads * case.head_dim, case.n_kv_heads * case.head_dim
    # Scores get a spread of about two, so that what a query may see and how it is rotated matter.
    query = (1.0 if case.qk_norm else 1.4) / np.sqrt(d)
    yield "token_embd", (case.vocab.size, d), 2.5 / np.sqrt(d), 0.0
    yield "output_norm", (d,), 0.15, 1.0
    if not case.tied:
        yield "output", (case.vocab.size, d), 2.5 / np.sqrt(d), 0.0
    for layer in range(case.n_layers):
        blocks = [("attn_norm", (d,), 0.15, 1.0), ("ffn_norm", (d,), 0.15, 1.0)]
        if case.fused:
            blocks += [
                ("attn_qkv", (q + 2 * kv, d), query, 0.0),
                ("ffn_up", (2 * ff, d), 1.2 / np.sqrt(d), 0.0),
            ]
        else:
            blocks += [
                ("attn_q", (q, d), query, 0.0),
                ("attn_k", (kv, d), query, 0.0),
                ("attn_v", (kv, d), 1.0 / np.sqrt(d), 0.0),
                ("ffn_gate", (ff, d), 1.2 / np.sqrt(d), 0.0),
                ("ffn_up", (ff, d), 1.2 / np.sqrt(d), 0.0),
            ]
        blocks += [
            ("attn_output", (d, q), 1.0 / np.sqrt(q), 0.0),
            ("ffn_down", (d, ff), 1.0 / np.sqrt(ff), 0.0),
        ]
        if case.qk_norm:
            blocks += [
                ("attn_q_norm", (case.head_dim,), 0.2, 1.4),
                ("attn_k_norm", (case.head_dim,), 0.2, 1.4),
            ]
        if case.post_norms is not None:
            attention, feed_forward = case.post_norms
            blocks += [
                ("post_attention_norm", (d,), 0.15 * attention, attention),
                ("post_ffw_norm", (d,), 0.15 * feed_forward, feed_forward),
            ]
        for name, shape, std, mean in blocks:
            yield f"blk.{layer}.{name}", shape, std, mean


def tensors(case: Case) -> Iterator[tuple[str, np.ndarray, T]]:
    """Every tensor of the file: its full name, its data (uint8 rows when quantised) and its type."""
    for name, shape, std, mean in _shapes(case):
        short = name.split(".")[-1]
        layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
        mix = case.types.get(short, (T.F32,))
        kind = mix[layer % len(mix)]
        yield f"{name}.weight", draw(f"{case.weights}/{name}", shape, kind, std, mean), kind
        if short in case.biases:
            yield f"{name}.bias", _uniform(f"{case.weights}/{name}.bias", shape[:1], case.bias_std), T.F32
    for name, divisors in case.rope_tensors.items():
        yield f"{name}.weight", np.array(divisors, np.float32), T.F32
