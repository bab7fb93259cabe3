"""From the tensors of a file to the weights of a model: every name, shape and row order in one place."""

import logging
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from minfer_jax.errors import GGUFError, UnsupportedError
from minfer_jax.gguf import RawTensor
from minfer_jax.models.arch import ARCHITECTURES
from minfer_jax.models.config import Config
from minfer_jax.models.params import Layer, Params
from minfer_jax.models.rope import frequencies
from minfer_jax.quant import PACKED, PLAIN, to_stack, to_tensor, to_vector
from minfer_jax.quant.fragments import Fragments, can_pack, to_fragments

log = logging.getLogger("minfer_jax")

RawLayer = dict[str, RawTensor]  # by field name of Layer

_MATRICES = {
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}
_VECTORS = {
    "attn_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "attn_post_norm": "post_attention_norm.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
    "ffn_post_norm": "post_ffw_norm.weight",
}
_JOINED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


class _Tensors:
    """The file's tensors, taken by name, so that at the end what nobody asked for is known."""

    def __init__(self, tensors: Mapping[str, RawTensor], source: str):
        self.left = dict(tensors)
        self.source = source

    def find(self, name: str, shape: tuple[int, ...] | None = None) -> RawTensor | None:
        tensor = self.left.pop(name, None)
        if tensor is not None and shape and tensor.shape != shape:
            raise GGUFError(
                f"{self.source}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)} by the metadata"
            )
        return tensor

    def take(self, name: str, shape: tuple[int, ...]) -> RawTensor:
        tensor = self.find(name, shape)
        if tensor is None:
            raise GGUFError(f"{self.source}: tensor {name} is missing; the file is incomplete or another model")
        return tensor

    def finish(self) -> None:
        """Weights of a layer that no block would use mean wrong numbers: refuse them. Others are named in the log."""
        unused = [name for name in self.left if name.startswith("blk.") or name.endswith(".bias")]
        if unused:
            raise UnsupportedError(f"{self.source}: this architecture has no place for {', '.join(unused[:5])}")
        if self.left:
            log.warning("%s: tensors not used: %s", self.source, ", ".join(self.left))


def load_params(
    tensors: Mapping[str, RawTensor],
    config: Config,
    source: str,
    implementation: str,
    dtype: str,
) -> Params:
    """All weights of a file. implementation, dtype: see ``quant.to_stack``.

    Raises GGUFError for a missing tensor or a wrong shape, UnsupportedError for one that we have no place for.
    """
    t = _Tensors(tensors, source)
    D, V = config.d_model, config.vocab_size
    embedding = t.take("token_embd.weight", (V, D))
    head = t.find("output.weight", (V, D))
    norm = t.take("output_norm.weight", (D,))
    divisors = _rope_divisors(t, config)
    runs = _runs([_raw_layer(t, config, i) for i in range(config.n_layers)], implementation not in ("xla", "pallas"))
    t.finish()
    _tell_expanded(
        [embedding, head, *(r[field] for run in runs for r in run for field in _MATRICES)], source, implementation
    )

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # conversion runs outside the interpreter lock
        joined = [_joined(run) if implementation == "pallas" else {} for run in runs]
        embedding_done = pool.submit(to_tensor, embedding, implementation, dtype, head is None)
        head_done = head and pool.submit(to_tensor, head, implementation, dtype)
        started = [
            {field: pool.submit(_stack, run, field, implementation, dtype, more) for field in run[0]}
            for run, more in zip(runs, joined, strict=True)
        ]
        return Params(
            embedding=embedding_done.result(),
            runs=tuple(
                replace(Layer(**{field: f.result() for field, f in run.items()}), **more)
                for run, more in zip(started, joined, strict=True)
            ),
            final_norm=jnp.asarray(to_vector(norm)),
            head=head_done and head_done.result(),
            rope_freqs=jnp.asarray(frequencies(config.rope, divisors)),
        )


def _tell_expanded(matrices: Iterable[RawTensor | None], source: str, implementation: str) -> None:
    """Say that some matrices do not stay as they are, because their types have no kernels here."""
    if implementation == "dense":
        return
    kept = PACKED if implementation == "pallas" else PACKED | PLAIN
    others = [m for m in matrices if m is not None and m.type.name not in kept]
    if others:
        names = ", ".join(sorted({m.type.name for m in others}))
        dtype = "float16" if implementation == "pallas" else "float32"
        gigabytes = sum(int(dtype[5:]) // 8 * math.prod(m.shape) for m in others) / 1e9
        log.warning("%s: no kernels for %s, weights kept in %s (%.2f GB)", source, names, dtype, gigabytes)


def _rope_divisors(t: _Tensors, config: Config) -> np.ndarray | None:
    """Per-pair divisors of the rope frequencies: Llama-3's, or LongRoPE's by whether n_ctx exceeds the original."""
    shape = (config.rope.dim // 2,)
    plain = t.find("rope_freqs.weight", shape)
    long = t.find("rope_factors_long.weight", shape)
    short = t.find("rope_factors_short.weight", shape)
    if config.rope.scaling == "longrope" and (long is None or short is None):
        raise GGUFError(f"{t.source}: LongRoPE needs tensors rope_factors_long.weight and rope_factors_short.weight")
    chosen = plain
    if long is not None and short is not None:
        chosen = long if config.n_ctx > config.rope.original_context else short
    if chosen is None:
        return None
    divisors = to_vector(chosen)
    if not (np.isfinite(divisors) & (divisors > 0)).all():
        raise GGUFError(f"{t.source}: tensor {chosen.name} must hold positive numbers")
    return divisors


def _raw_layer(t: _Tensors, config: Config, i: int) -> RawLayer:
    """The tensors of layer i by field name, fused ones cut apart and pair-ordered rows re-ordered."""
    arch = ARCHITECTURES[config.arch]
    D, hd, F = config.d_model, config.head_dim, config.d_ff
    q_rows, kv_rows = config.n_heads * hd, config.n_kv_heads * hd
    rows = {"q": q_rows, "k": kv_rows, "v": kv_rows, "gate": F, "up": F}
    shapes = {name: (n, D) for name, n in rows.items()} | {"o": (D, q_rows), "down": (D, F)}
    raw: RawLayer = {}

    for kind in ("weight", "bias"):
        suffix = "" if kind == "weight" else "_bias"
        fused: dict[str, tuple[str, ...]] = {f"blk.{i}.attn_qkv.{kind}": ("q", "k", "v")}
        if f"blk.{i}.ffn_gate.weight" not in t.left:
            fused[f"blk.{i}.ffn_up.{kind}"] = ("gate", "up")
        for name, parts in fused.items():
            tensor = t.find(name)
            if tensor is None:
                continue
            if tensor.shape[0] != sum(rows[p] for p in parts):
                raise GGUFError(f"{t.source}: tensor {name} has {tensor.shape[0]} rows, not those of {parts}")
            start = 0
            for part in parts:
                raw[part + suffix] = _select(tensor, np.s_[start : start + rows[part]])
                start += rows[part]

    for field, name in _MATRICES.items():
        if field not in raw:
            raw[field] = t.take(f"blk.{i}.{name}", shapes[field])
    rows |= {"o": D, "down": D}
    for field, name in _VECTORS.items():
        size = rows[field[:-5]] if field.endswith("_bias") else hd if field in ("q_norm", "k_norm") else D
        get = t.take if field in ("attn_norm", "ffn_norm", *arch.requires) else t.find
        if field not in raw and (tensor := get(f"blk.{i}.{name}", (size,))) is not None:
            raw[field] = tensor

    if arch.pair_ordered_qk:
        for field in ("q", "q_bias", "k", "k_bias"):
            if field in raw:
                raw[field] = _select(raw[field], _halves_order(config, raw[field].shape[0]))
    return raw


def _halves_order(config: Config, n_rows: int) -> np.ndarray:
    """Rows (0, 1), (2, 3).. of each head's rotated part -> all firsts, then all seconds."""
    dim = config.rope.dim
    order = np.concatenate([np.arange(0, dim, 2), np.arange(1, dim, 2), np.arange(dim, config.head_dim)])
    return (np.arange(0, n_rows, config.head_dim)[:, None] + order).reshape(-1)


def _select(tensor: RawTensor, rows: slice | np.ndarray) -> RawTensor:
    """Some rows of a matrix, or elements of a vector, still raw."""
    if len(tensor.shape) == 1:  # its bytes are one row: view them as elements
        data = tensor.data.reshape(tensor.shape[0], -1)[rows].reshape(-1)
        return replace(tensor, data=data, shape=(data.size // (tensor.data.size // tensor.shape[0]),))
    data = tensor.data[rows]
    return replace(tensor, data=data, shape=(data.shape[0], *tensor.shape[1:]))


def _runs(layers: list[RawLayer], mixed: bool) -> list[list[RawLayer]]:
    """Consecutive layers with the same tensors, shapes and, unless they may be ``mixed`` in a stack, types."""

    def signature(layer: RawLayer) -> dict:
        return {field: (t.shape, None if mixed else t.type) for field, t in layer.items()}

    runs: list[list[RawLayer]] = []
    for layer in layers:
        if runs and signature(runs[-1][0]) == signature(layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _stack(run: list[RawLayer], field: str, implementation: str, dtype: str, joined: Iterable[str]) -> Any:
    """One field of all layers of a run: a Weight, or an array of vectors [L, n]."""
    parts = [layer[field] for layer in run]
    if field in _MATRICES:
        apart = not any(field in _JOINED[name] for name in joined)
        return to_stack(parts, implementation, dtype, apart)
    return jnp.stack([to_vector(p) for p in parts])


def _joined(run: list[RawLayer]) -> dict[str, Fragments]:
    """Matrices of a run that GPU kernels take as one, with the norm in front, by field of Layer."""
    found = {}
    for name, fields in _JOINED.items():
        stack = [[layer[field] for field in fields] for layer in run]
        biases = [f"{field}_bias" for field in fields if f"{field}_bias" in run[0]]
        gated = name == "gate_up"
        if can_pack(stack) and len(biases) in ((0,) if gated else (0, len(fields))):
            norm, *vectors = (
                jnp.stack([to_vector(layer[vector]) for layer in run])
                for vector in ("ffn_norm" if gated else "attn_norm", *biases)
            )
            found[name] = to_fragments(stack, norm, vectors, gated)
    return found
