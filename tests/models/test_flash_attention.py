"""Attention by cuDNN against its definition in float64."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.models.attention import visible
from minfer_jax.models.flash_attention import can_flash, flash_attention

CONFIG: Any = SimpleNamespace(head_dim=64, attention_scale=0.125, attention_softcap=0.0)


def defined(q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """q [B, T, H, D], k and v [B, KV, S, D], seen [B, T, S] -> [B, T, H * D] in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (x.repeat(q.shape[2] // k.shape[1], 1) for x in (k, v))
    scores = np.einsum("bthd,bhsd->bhts", q, k) * CONFIG.attention_scale
    weights = np.where(seen[:, None], np.exp(scores - scores.max(-1, keepdims=True)), 0)
    out = np.einsum("bhts,bhsd->bthd", weights, v) / weights.sum(-1).swapaxes(1, 2)[..., None]
    return out.reshape(*q.shape[:2], -1)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "off"), [("float16", 2e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("window", [0, 5])
def test_flash_attention(dtype, off, window):
    """Rows that begin anywhere, keys that are padding, numbers beyond float16's range."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, 20, 6, 64)).astype(np.float32)
    k, v = rng.normal(size=(2, 3, 2, 48, 64)).astype(np.float32)
    v *= 1e5
    positions, keys = np.arange(20) + np.array([[0], [7], [28]]), np.tile(np.arange(48), (3, 1))
    keys[1, 27:] = -1
    seen = np.array(visible(positions, keys, jnp.int32(window)))
    assert can_flash(CONFIG, 20, jnp.dtype(dtype))
    out = flash_attention(CONFIG, q, k, v, seen, jnp.dtype(dtype))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out / 1e5, defined(q, k, v / 1e5, seen), atol=off)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "off"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_a_causal_one_needs_no_mask(dtype, off):
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, 33, 6, 64)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, 2, 33, 64)).astype(np.float32)
    out = flash_attention(CONFIG, q, k, v, None, jnp.dtype(dtype))
    np.testing.assert_allclose(out, defined(q, k, v, np.tri(33, dtype=bool)[None]), atol=off)


def test_where_it_serves():
    """Not for float32, which it would round, nor in a decode step, nor with a soft cap; and on a GPU alone."""
    half = jnp.dtype(jnp.float16)
    assert not can_flash(CONFIG, 20, jnp.dtype(jnp.float32))
    assert not can_flash(CONFIG, 1, half)
    assert not can_flash(SimpleNamespace(head_dim=64, attention_softcap=50.0), 20, half)  # pyright: ignore
    assert not can_flash(SimpleNamespace(head_dim=256, attention_softcap=0.0), 20, half)  # pyright: ignore
