"""All layers of a decode step of one row in one kernel, over stacked quantised weights."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import decode_attention
from pallas_kernels.compat import multiprocessors
from pallas_kernels.decode_layers.kernel import kernel
from pallas_kernels.decode_layers.plan import Plan
from pallas_kernels.quantised_matmul.layout import Layout

__all__ = ["Layers", "Matrix", "decode_layers", "serves"]

Array = Any


@dataclass(frozen=True)
class Matrix:
    """A matrix of every layer. words: uint32 [L, tiles, words], as ``quantised_matmul`` takes them, of ``layout``
    (static). norm: [L, K] float32, the weight of an RMSNorm of its input, or None. bias: [L, N] float32, or None."""

    words: Array
    layout: Layout
    norm: Array | None = None
    bias: Array | None = None


jax.tree_util.register_dataclass(Matrix, ["words", "norm", "bias"], ["layout"])


@dataclass(frozen=True)
class Layers:
    """qkv: projections of the normed stream, heads of queries, of keys and of values, as one matrix or several. o: of
    the heads. gate_up: tiles take turns, with a norm. down. q_norm, k_norm: [L, D] float32, of each head, or None."""

    qkv: tuple[Matrix, ...]
    o: Matrix
    gate_up: Matrix
    down: Matrix
    q_norm: Array | None = None
    k_norm: Array | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return *self.qkv, self.o, self.gate_up, self.down


jax.tree_util.register_dataclass(Layers, ["qkv", "o", "gate_up", "down", "q_norm", "k_norm"], [])


def _plan(layers: Layers, cache_shape: tuple[int, ...], half: int, activation: str, eps: float, scale: float) -> Plan:
    kv, length, dim = cache_shape[2:]
    rows = sum(m.layout.rows for m in layers.qkv)
    return Plan(
        tuple(m.layout for m in layers.qkv),
        layers.o.layout,
        layers.gate_up.layout,
        layers.down.layout,
        tuple(m.bias is not None for m in layers.matrices),
        activation,
        float(eps),
        rows // dim - 2 * kv,
        kv,
        dim,
        half,
        length,
        float(scale),
        layers.q_norm is not None,
        layers.o.words.shape[0],
        multiprocessors(),
    )


def serves(layers: Layers, cache_shape: tuple[int, ...], half: int, activation: str) -> bool:
    """Whether there is a kernel for these layers, a cache [L, B, KV, S, D], and ``half`` pairs that are rotated."""
    is_one = cache_shape[1] == 1 and decode_attention.serves(cache_shape[4])
    return is_one and _plan(layers, cache_shape, half, activation, 0.0, 0.0).fits


def decode_layers(
    x: jax.Array,
    layers: Layers,
    cos: jax.Array,
    sin: jax.Array,
    tables: jax.Array,
    windows: jax.Array,
    position: jax.Array,
    cache_k: jax.Array,
    cache_v: jax.Array,
    first: jax.Array | int,
    *,
    activation: str,
    eps: float,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The residual stream [1, K] float32 behind all layers, and the caches with the new keys and values.

    x: [1, K] float32, before the first of them. cos, sin [tables, half] float32: of the position. tables, windows [L]
    int32: which of those a layer takes, and what it sees (see ``decode_attention``). position: int32 [1]. cache_k,
    cache_v [.., 1, KV, S, D] float32, of which the layers from ``first`` on are used; jit with both donated, or they
    are copied.

    The bits are those of ``quantised_matmul`` and ``decode_attention``, one after the other. Its blocks wait for each
    other, so nothing else may keep a multiprocessor for good: one such kernel at a time.
    """
    plan = _plan(layers, cache_k.shape, cos.shape[-1], activation, eps, scale)
    arrays: dict[str, Any] = {"cos": cos, "sin": sin, "tables": tables, "windows": windows}
    arrays |= {"q_norm": layers.q_norm, "k_norm": layers.k_norm}
    arrays |= {"position": position, "first": jnp.asarray(first, jnp.int32).reshape(1)}
    for i, m in enumerate(layers.matrices):
        arrays |= {f"words{i}": m.words, f"norm{i}": m.norm, f"bias{i}": m.bias}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    # The first layer's x is there; every other number of the mail is yet to come: no tag is 0.
    own = jnp.stack([x[0].view(jnp.uint32), jnp.ones(x.shape[1], jnp.uint32)], 1)
    mail = jax.new_ref(jnp.pad(own, ((0, plan.mail_at["end"] - len(own)), (0, 0))))
    keys, values = jax.new_ref(cache_k), jax.new_ref(cache_v)
    y = kernel(plan)(arrays, mail, keys, values)
    return y, keys[...], values[...]
