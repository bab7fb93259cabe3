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

    def step(carry: tuple, begin: jax.Array) -> tuple[tuple, None]:
        peak, total, target, best = carry
        start = jnp.minimum(begin, rows - size)  # the last chunk reaches back and hides what was counted
        ids = start + jnp.arange(size, dtype=jnp.int32)
        z = soft_cap(linear(hidden, [weight.rows(start, size)])[0], config.final_softcap)
        z = jnp.where((ids >= begin) & (ids < vocab), z, -jnp.inf)  # rows that pad a tile are no tokens
        best = jnp.where(z.max(-1) > peak, start + jax.lax.argmax(z, 1, jnp.int32), best)
        peak, total = _add_chunk(peak, total, z, weight.is_tiled)
        inside = (targets >= begin) & (targets < start + size)
        picked = jnp.take_along_axis(z, jnp.clip(targets - start, 0, size - 1)[:, None], 1)[:, 0]
        return (peak, total, jnp.where(inside, picked, target), best), None

    n = hidden.shape[0]
    nothing = jnp.full(n, -jnp.inf, jnp.float32)
    init = (nothing, jnp.zeros_like(nothing), nothing, jnp.zeros(n, jnp.int32))
    (peak, total, target, best), _ = jax.lax.scan(step, init, jnp.arange(0, vocab, size, dtype=jnp.int32))
    return target - peak - jnp.log(total), best


def logprobs_of(z: jax.Array, ids: jax.Array, native: bool) -> jax.Array:
    """Log-probability of one id per row of logits that are there: z [N, vocab], ids [N] -> [N] float32. native: of a
    model that runs on the native library. Chunk by chunk, so that it has the bits of :func:`token_logprobs`."""
    n, vocab = z.shape
    size = min(_VOCAB_CHUNK, vocab)
    chunks = jnp.pad(z, ((0, 0), (0, -vocab % size)), constant_values=-jnp.inf).reshape(n, -1, size).swapaxes(0, 1)
    init = (jnp.full(n, -jnp.inf, jnp.float32), jnp.zeros(n, jnp.float32))
    (peak, total), _ = jax.lax.scan(lambda sums, chunk: (_add_chunk(*sums, chunk, native), None), init, chunks)
    # The bound changes nothing, but keeps XLA from rounding a soft cap's product and this difference as one operation.
    return jnp.maximum(z[jnp.arange(n), ids], jnp.finfo(jnp.float32).min) - peak - jnp.log(total)


def _add_chunk(peak: jax.Array, total: jax.Array, z: jax.Array, native: bool) -> tuple[jax.Array, jax.Array]:
    """The largest logit so far, and the sum of exp(logit - that), with more logits z [N, chunk] taken in."""
    new = jnp.maximum(peak, z.max(-1))
    more = native_rows.sum_exp(z, new) if native else jnp.exp(z - new[:, None]).sum(-1)
    return new, total * jnp.exp(peak - new) + more
