"""Attention from its definition, in float64, and what the tests of the native one share."""

from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config, Rope
from minfer_jax.models.native_attention import attend

LAYERS = 2
LAYER = 1  # of a cache, the one in use


@dataclass(frozen=True)
class Sizes:
    """Of a model's attention. half: pairs of dimensions that are rotated; None: as many as there are.
    sharpness: times the usual scale of scores."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    half: int | None = None
    softcap: float = 0.0
    norms: bool = False
    eps: float = 1e-5
    sharpness: float = 1.0

    @property
    def pairs(self) -> int:
        return self.dim // 2 if self.half is None else self.half

    @property
    def scale(self) -> float:
        return self.sharpness * self.dim**-0.5


class Tokens(NamedTuple):
    """q [B, T, heads, dim], k and v [B, T, kv_heads, dim] float32; positions [B, T] int32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    positions: np.ndarray

    def of(self, rows: Any, columns: Any) -> "Tokens":
        return Tokens(*(np.ascontiguousarray(x[rows, columns]) for x in self))


def random_tokens(sizes: Sizes, positions: np.ndarray, seed: int = 0) -> Tokens:
    rng = np.random.default_rng(seed)
    shapes = [(*positions.shape, n, sizes.dim) for n in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
    return Tokens(*(rng.normal(size=shape).astype(np.float32) for shape in shapes), positions.astype(np.int32))


def random_cache(sizes: Sizes, rows: int, length: int, dtype: Any = jnp.float32, seed: int = 1) -> KVCache:
    rng = np.random.default_rng(seed)
    shape = (LAYERS, rows, sizes.kv_heads, length, sizes.dim)
    return KVCache(*(jnp.asarray(rng.normal(size=shape), dtype) for _ in range(2)))


def angles(sizes: Sizes, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    theta = positions[..., None] * 0.7 ** np.arange(sizes.pairs)
    return np.cos(theta).astype(np.float32), np.sin(theta).astype(np.float32)


def norms(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(0.5, 1.5, sizes.dim, dtype=np.float32), np.linspace(-1, 2, sizes.dim, dtype=np.float32)


def config(sizes: Sizes) -> Config:
    return Config(
        arch="test",
        n_layers=LAYERS,
        d_model=0,
        n_heads=sizes.heads,
        n_kv_heads=sizes.kv_heads,
        head_dim=sizes.dim,
        d_ff=0,
        vocab_size=0,
        n_ctx=0,
        n_ctx_train=0,
        rms_eps=sizes.eps,
        rope=Rope(2 * sizes.pairs, (10000.0,)),
        windows=(0,) * LAYERS,
        rope_tables=(0,) * LAYERS,
        activation="silu",
        attention_scale=sizes.scale,
        attention_softcap=sizes.softcap,
    )


@partial(jax.jit, static_argnames="sizes")
def traced(
    sizes: Sizes,
    tokens: Tokens,
    cos: Any,
    sin: Any,
    window: Any,
    cache: KVCache | None,
    index: Any = LAYER,
    until: Any = None,
) -> tuple[jax.Array, KVCache | None]:
    """The custom call, as a function of arrays."""
    q_norm, k_norm = map(jnp.asarray, norms(sizes)) if sizes.norms else (None, None)
    layer: Any = SimpleNamespace(q_norm=q_norm, k_norm=k_norm)
    q, k, v, positions = tokens
    return attend(config(sizes), layer, q, k, v, cos, sin, positions, window, cache, index, until)


def native(sizes: Sizes, tokens: Tokens, cache: KVCache | None = None, window: int = 0, until: Any = None):
    """Its output [B, T, heads, dim] and the cache."""
    out, cache = traced(sizes, tokens, *angles(sizes, tokens.positions), np.int32(window), cache, until=until)
    return np.asarray(out).reshape(tokens.q.shape), cache


def placed(sizes: Sizes, x: np.ndarray, norm: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Heads normed, if the model has norms, and rotated: float64."""
    x = x.astype(np.float64)
    if sizes.norms:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + sizes.eps) * norm
    cos, sin = (c[:, :, None].astype(np.float64) for c in angles(sizes, positions))
    n = sizes.pairs
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def written(sizes: Sizes, tokens: Tokens, cache: KVCache) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [B, kv_heads, S, dim] of the layer with those of the tokens in their slots: float64."""
    keys, values = (np.array(x[LAYER], np.float64) for x in (cache.k, cache.v))
    new = placed(sizes, tokens.k, norms(sizes)[1], tokens.positions)
    for row, column in np.ndindex(tokens.positions.shape):
        slot = tokens.positions[row, column]
        if 0 <= slot < cache.length:
            keys[row, :, slot], values[row, :, slot] = new[row, column], tokens.v[row, column]
    return keys, values


def defined(
    sizes: Sizes,
    tokens: Tokens,
    keys: np.ndarray,
    values: np.ndarray,
    key_positions: np.ndarray,
    window: int = 0,
) -> np.ndarray:
    """The output [B, T, heads, dim], zeros for padding: keys and values [B, kv_heads, S, dim], key_positions [B, S]."""
    q = placed(sizes, tokens.q, norms(sizes)[0], tokens.positions)
    out = np.zeros(q.shape)
    for row, column in np.ndindex(tokens.positions.shape):
        back = tokens.positions[row, column] - key_positions[row]
        seen = (key_positions[row] >= 0) & (back >= 0) & (back < (window or np.inf))
        for head in range(sizes.heads if tokens.positions[row, column] >= 0 else 0):
            shared = head // (sizes.heads // sizes.kv_heads)
            scores = keys[row, shared][seen] @ q[row, column, head] * sizes.scale
            if sizes.softcap:
                scores = sizes.softcap * np.tanh(scores / sizes.softcap)
            weights = np.exp(scores - scores.max())
            out[row, column, head] = weights @ values[row, shared][seen] / weights.sum()
    return out
