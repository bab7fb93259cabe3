"""Attention on a GPU by cuDNN, in 16-bit floats, without scores in memory (FlashAttention, arXiv 2205.14135)."""

import jax
import jax.numpy as jnp

from minfer_jax.models.config import Config
from minfer_jax.quant import narrow
from pallas_kernels.compat import cuda_capability

_MOST_HEAD_DIM = 128  # of cuDNN on every such GPU


def can_flash(config: Config, n_queries: int, dtype: jnp.dtype) -> bool:
    """Whether it serves: on an NVIDIA GPU from Ampere on, for models whose products take 16-bit floats anyway, and more
    than the one query of a decode step, which leaves it idle. It has no soft cap."""
    is_fit = config.head_dim <= _MOST_HEAD_DIM and config.head_dim % 8 == 0 and not config.attention_softcap
    return is_fit and dtype.itemsize == 2 and n_queries > 1 and (cuda_capability() or (0,)) >= (8, 0)


def flash_attention(
    config: Config, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, dtype: jnp.dtype
) -> jax.Array:
    """As ``attention.attention``, with q, k and v rounded to ``dtype``.

    mask: bool [B, T, S], the keys that a query sees; None: key s is seen by queries t >= s.
    """
    (q, q_factor), (k, k_factor), (v, v_factor) = (narrow(x, dtype) for x in (q, k, v))
    out = jax.nn.dot_product_attention(
        q,
        k.swapaxes(1, 2),
        v.swapaxes(1, 2),
        mask=None if mask is None else mask[:, None],
        scale=config.attention_scale * q_factor * k_factor,
        is_causal=mask is None,
        implementation="cudnn",
    )
    return out.reshape(*q.shape[:2], -1).astype(jnp.float32) * v_factor
