"""Rotary position embedding: frequencies from the config (once, at load) and the rotation (in the program).

Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071); LongRoPE (arXiv 2402.13753); Llama-3 factors come as a
tensor in the file. Conventions as llama.cpp applies them to the same metadata.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.config import Rope


def frequencies(rope: Rope, divisors: np.ndarray | None) -> np.ndarray:
    """Angle per position and pair: [tables, dim / 2] float32. divisors: per-pair factors of the file, or None."""
    half = rope.dim // 2
    tables = [base ** (-np.arange(half, dtype=np.float64) / half) for base in rope.bases]
    own = tables[0] if divisors is None else tables[0] / divisors.astype(np.float64)
    interpolated = own / rope.factor
    if rope.scaling == "yarn":
        keep = _yarn_ramp(rope)
        tables[0] = interpolated * (1 - keep) + own * keep
    else:
        tables[0] = own if rope.scaling == "longrope" else interpolated
    return np.stack(tables).astype(np.float32)


def magnitude(rope: Rope) -> float:
    """What cos and sin of the first table are multiplied by."""
    grows = rope.scaling == "yarn" and rope.factor > 1
    return rope.attention_factor * (1 + 0.1 * math.log(rope.factor) if grows else 1.0)


def _yarn_ramp(rope: Rope) -> np.ndarray:
    """1 where a pair turns often enough to be left alone, 0 where it is interpolated, a ramp between: [dim / 2]."""

    def pair_that_turns(times: float) -> float:
        return rope.dim * math.log(rope.original_context / (times * 2 * math.pi)) / (2 * math.log(rope.bases[0]))

    low = max(0, math.floor(pair_that_turns(rope.beta_fast)))
    high = min(rope.dim - 1, math.ceil(pair_that_turns(rope.beta_slow)))
    ramp = (np.arange(rope.dim // 2) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)


def angles(freqs: jax.Array, positions: jax.Array, scale: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin, [tables, B, T, dim / 2] float32, for freqs [tables, dim / 2] and positions [B, T] int32."""
    theta = positions.astype(jnp.float32)[None, :, :, None] * freqs[:, None, None, :]
    scales = jnp.ones(freqs.shape[0], jnp.float32).at[0].set(scale)[:, None, None, None]
    return jnp.cos(theta) * scales, jnp.sin(theta) * scales


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate pairs (i, i + dim / 2) of each head: x [B, T, H, head_dim], cos and sin [B, T, dim / 2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)
