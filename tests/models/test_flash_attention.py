"""Attention by cuDNN against its definition in float64."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import minfer_jax as mj
from minfer_jax.models import flash_attention as flash_attention_module
from minfer_jax.models.attention import visible
from minfer_jax.models.flash_attention import can_flash, flash_attention
from tests.tiny import CASES
from tests.traces import traced_anew

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


def test_where_it_serves(monkeypatch):
    """From Ampere on; not for float32, which it would round, nor in a decode step, nor with a soft cap."""
    half = jnp.dtype(jnp.float16)
    capped: Any = SimpleNamespace(head_dim=64, attention_softcap=50.0)
    large: Any = SimpleNamespace(head_dim=256, attention_softcap=0.0)
    assert not can_flash(CONFIG, 20, half)  # no GPU
    for capability, serves in (((7, 5), False), ((8, 0), True), ((9, 0), True), (None, False)):
        monkeypatch.setattr(flash_attention_module, "cuda_capability", lambda c=capability: c)
        assert can_flash(CONFIG, 20, half) == serves
    monkeypatch.setattr(flash_attention_module, "cuda_capability", lambda: (9, 0))
    assert can_flash(CONFIG, 2, jnp.dtype(jnp.bfloat16))
    assert not can_flash(CONFIG, 20, jnp.dtype(jnp.float32))
    assert not can_flash(CONFIG, 1, half)
    assert not can_flash(capped, 20, half) and not can_flash(large, 20, half)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["qwen2", "gemma3"])
def test_a_model_that_takes_it(tiny_gguf, monkeypatch, case, dtype):
    """JAX's own attention in cuDNN's place: masks, windows, factors and rows that promise to need no mask."""
    library = jax.nn.dot_product_attention
    masks = []

    def instead(*args, mask, implementation, **options):
        assert implementation == "cudnn" and all(x.dtype == dtype for x in args)
        masks.append(mask is not None)
        wide = (x.astype(jnp.float32) for x in args)
        return library(*wide, mask=mask, implementation="xla", **options).astype(dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", instead)
    monkeypatch.setattr(flash_attention_module, "cuda_capability", lambda: (9, 0))
    exact, model = (traced_anew(mj.load(tiny_gguf(case), implementation="dense", dtype=d)) for d in ("float32", dtype))
    ids = CASES[case].tokens(20)
    wanted = mj.score_tokens(exact, [(ids[:1], ids[1:]), (ids[:3], ids[3:9])])
    ours = mj.score_tokens(model, [(ids[:1], ids[1:]), (ids[:3], ids[3:9])])
    assert masks and all(masks) == (case == "gemma3")  # windows want a mask
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_allclose(a.token_logprobs, b.token_logprobs, atol=0.02 if dtype == "float16" else 0.2)
    out = mj.generate(model, ids[:9], max_tokens=1, sampler=mj.Sampler(temperature=0))
    assert masks[-1]  # behind a cache
    assert out.token_logprobs[0] == pytest.approx(
        mj.generate(exact, ids[:9], max_tokens=1, sampler=mj.Sampler(temperature=0)).token_logprobs[0], abs=0.2
    )
