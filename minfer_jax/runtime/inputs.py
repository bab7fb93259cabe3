"""Checking the arrays of a run of tokens through the model; every message names the argument.

A decode step passes here for every token, so what is fine takes few operations.
"""

from typing import Any

import jax
import numpy as np

from minfer_jax.errors import ArgumentError, ContextLengthError
from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config


def check_run(
    config: Config, tokens: Any, positions: Any, cache: KVCache | None, tail_ids: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """tokens, positions [B, T] and tail_ids [n_out] as int32. Raises ArgumentError, ContextLengthError."""
    tokens, positions = _integers("tokens", tokens, 2), _integers("positions", positions, 2)
    if cache is not None:
        _check_cache(config, cache)
    if positions.shape != tokens.shape:
        raise ArgumentError(f"positions has shape {positions.shape} and tokens {tokens.shape}; give one for each")
    _check_range("tokens", tokens, 0, config.vocab_size)
    rows, length = (len(tokens), config.n_ctx) if cache is None else (cache.k.shape[1], cache.length)
    if len(tokens) != rows:
        raise ArgumentError(f"tokens has {len(tokens)} rows and the cache {rows}; give as many")
    last = max(tokens.shape[1] - 1, _ends(positions)[1])
    if last >= length:
        raise ContextLengthError(
            f"{last + 1} positions do not fit {'the context window' if cache is None else 'the cache'} of {length}; "
            "give fewer, or make it longer"
        )
    _check_range("positions", positions, -1, length)
    if tail_ids is not None:
        tail_ids = _integers("tail_ids", tail_ids, 1)
        _check_range("tail_ids", tail_ids, 0, tokens.size)
        tail_ids = tail_ids.astype(np.int32, copy=False)
    return tokens.astype(np.int32, copy=False), positions.astype(np.int32, copy=False), tail_ids


def _check_cache(config: Config, cache: KVCache) -> None:
    if not isinstance(cache, KVCache):
        raise ArgumentError(f"cache is {cache!r:.40}; give one that init_cache made")
    k, v = cache.k, cache.v
    if not all(isinstance(x, jax.Array) for x in (k, v)) or (k.shape, k.dtype) != (v.shape, v.dtype):
        raise ArgumentError("cache has keys and values that do not belong together; give one that init_cache made")
    if k.ndim != 5 or k.dtype.name not in ("float32", "bfloat16"):
        raise ArgumentError(f"cache holds {k.dtype} of shape {k.shape}; give one that init_cache made")
    layers, _, heads, _, size = k.shape
    if (layers, heads, size) != (config.n_layers, config.n_kv_heads, config.head_dim):
        raise ArgumentError(f"cache has shape {k.shape}, of another model; give one for this config")
    if k.is_deleted() or v.is_deleted():
        raise ArgumentError("cache was consumed by an earlier call; go on with the one that came back from it")


def _integers(name: str, values: Any, rank: int) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.asarray(values, object)
    if array.ndim != rank or array.dtype.kind not in "iu" or array.size == 0:
        what = "[B, T]" if rank == 2 else "[n_out]"
        raise ArgumentError(f"{name} has shape {array.shape} and dtype {array.dtype}; give integers {what}")
    return array


def _check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    for value in _ends(values):
        if not low <= value < high:
            raise ArgumentError(f"{name} holds {value}; give numbers from {low} to {high - 1}")


def _ends(values: np.ndarray) -> tuple[int, int]:
    """The least and the greatest; for the few numbers of a decode step Python is faster than NumPy."""
    if values.size > 8:
        return int(values.min()), int(values.max())
    few = values.ravel().tolist()
    return min(few), max(few)
