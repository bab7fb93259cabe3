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
        sums, target, best = carry
        start = jnp.minimum(begin, rows - size)  # the last chunk reaches back and hides what was counted
        ids = start + jnp.arange(size, dtype=jnp.int32)
        z = soft_cap(linear(hidden, [weight.rows(start, size)])[0], config.final_softcap)
        z = jnp.where((ids >= begin) & (ids < vocab), z, -jnp.inf)  # rows that pad a tile are no tokens
        best = jnp.where(z.max(-1) > sums[0], start + jax.lax.argmax(z, 1, jnp.int32), best)
        sums = _add_chunk(sums, z, weight.is_tiled)
        inside = (targets >= begin) & (targets < start + size)
        picked = jnp.take_along_axis(z, jnp.clip(targets - start, 0, size - 1)[:, None], 1)[:, 0]
        return (sums, jnp.where(inside, picked, target), best), None

    n = hidden.shape[0]
    init = (_no_logits(n), jnp.full(n, -jnp.inf, jnp.float32), jnp.zeros(n, jnp.int32))
    (sums, target, best), _ = jax.lax.scan(step, init, jnp.arange(0, vocab, size, dtype=jnp.int32))
    peak, _, log_total = sums
    return target - peak - log_total, best


def logprobs_of(z: jax.Array, ids: jax.Array, native: bool) -> jax.Array:
    """Log-probability of one id per row of logits that are there: z [N, vocab], ids [N] -> [N] float32. native: of a
    model that runs on the native library. Chunk by chunk, so that it has the bits of :func:`token_logprobs`."""
    n, vocab = z.shape
    if not native:
        return jax.nn.log_softmax(z)[jnp.arange(n), ids]
    size = min(_VOCAB_CHUNK, vocab)
    chunks = jnp.pad(z, ((0, 0), (0, -vocab % size)), constant_values=-jnp.inf).reshape(n, -1, size).swapaxes(0, 1)
    sums, _ = jax.lax.scan(lambda sums, chunk: (_add_chunk(sums, chunk, native), None), _no_logits(n), chunks)
    peak, _, log_total = sums
    # The bound changes nothing, but keeps XLA from rounding a soft cap's product and this difference as one operation.
    return jnp.maximum(z[jnp.arange(n), ids], jnp.finfo(jnp.float32).min) - peak - log_total


_Sums = tuple[jax.Array, jax.Array, jax.Array]
"""Of the logits so far, [N] each: the largest, the sum of exp(logit - that), and its logarithm."""


def _no_logits(n: int) -> _Sums:
    lowest = jnp.full(n, -jnp.inf, jnp.float32)
    return lowest, jnp.zeros(n, jnp.float32), lowest


def _add_chunk(sums: _Sums, z: jax.Array, native: bool) -> _Sums:
    """The sums with more logits z [N, chunk] taken in."""
    peak, total, _ = sums
    if native:
        return native_rows.add_exp(z, peak, total)
    new = jnp.maximum(peak, z.max(-1))
    total = total * jnp.exp(peak - new) + jnp.exp(z - new[:, None]).sum(-1)
    return new, total, jnp.log(total)
