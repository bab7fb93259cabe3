"""The language-model head: logits, and log-probabilities that never hold a row of logits longer than a chunk."""

from functools import partial

import chex
import jax
import jax.numpy as jnp

from minfer_jax.models import native_rows
from minfer_jax.models.blocks import soft_cap
from minfer_jax.models.config import Config
from minfer_jax.models.linear import linear
from minfer_jax.models.params import Params
from minfer_jax.quant import QuantTensor

_VOCAB_CHUNK = 8192  # fixed by nothing but memory: N x 8192 floats are alive at a time


def head_weight(params: Params) -> QuantTensor:
    """The output matrix [vocab, D]; a model without one ties it to the embedding."""
    return params.embedding if params.head is None else params.head


@partial(jax.jit, static_argnames="config")
def logits(params: Params, config: Config, hidden: jax.Array) -> jax.Array:
    """hidden [..., D] float32 -> [..., vocab] float32."""
    return soft_cap(linear(hidden, [head_weight(params)])[0], config.final_softcap)


@partial(jax.jit, static_argnames="config")
def token_logprobs(
    params: Params, config: Config, hidden: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of one target per row, and the likeliest token: hidden [N, D], targets [N] int32 ->
    (logprob [N] float32, greedy [N] int32).

    One pass over the vocabulary in chunks with a running maximum and sum (online log-sum-exp, arXiv 1805.02867);
    N x vocab never exists. Ties go to the lowest id, as in argmax.
    """
    chex.assert_rank(hidden, 2)
    chex.assert_shape(targets, (hidden.shape[0],))
    weight = head_weight(params)
    vocab = weight.shape[0]
    rows = -(-vocab // weight.row_step) * weight.row_step
    size = min(_VOCAB_CHUNK, rows)
    sum_exp = native_rows.sum_exp if weight.is_tiled else _sum_exp

    def step(carry: tuple, begin: jax.Array) -> tuple[tuple, None]:
        peak, total, target, best = carry
        start = jnp.minimum(begin, rows - size)  # the last chunk reaches back and hides what was counted
        ids = start + jnp.arange(size, dtype=jnp.int32)
        z = soft_cap(linear(hidden, [weight.rows(start, size)])[0], config.final_softcap)
        z = jnp.where((ids >= begin) & (ids < vocab), z, -jnp.inf)  # rows that pad a tile are no tokens
        high = z.max(-1)
        new_peak = jnp.maximum(peak, high)
        total = total * jnp.exp(peak - new_peak) + sum_exp(z, new_peak)
        best = jnp.where(high > peak, start + jax.lax.argmax(z, 1, jnp.int32), best)
        inside = (targets >= begin) & (targets < start + size)
        picked = jnp.take_along_axis(z, jnp.clip(targets - start, 0, size - 1)[:, None], 1)[:, 0]
        return (new_peak, total, jnp.where(inside, picked, target), best), None

    n = hidden.shape[0]
    nothing = jnp.full(n, -jnp.inf, jnp.float32)
    init = (nothing, jnp.zeros_like(nothing), nothing, jnp.zeros(n, jnp.int32))
    (peak, total, target, best), _ = jax.lax.scan(step, init, jnp.arange(0, vocab, size, dtype=jnp.int32))
    return target - peak - jnp.log(total), best


def _sum_exp(z: jax.Array, shift: jax.Array) -> jax.Array:
    return jnp.exp(z - shift[:, None]).sum(-1)
