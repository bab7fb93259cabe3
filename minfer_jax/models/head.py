"""The language-model head: logits, and log-probabilities that never hold a row of logits longer than a chunk."""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp

from minfer_jax.models.blocks import soft_cap
from minfer_jax.models.config import Config
from minfer_jax.models.linear import linear
from minfer_jax.models.native_rows import Sums, add_logits
from minfer_jax.models.params import Params
from minfer_jax.quant import QuantTensor
from minfer_jax.quant.dense_kernels import have_log_softmax, log_softmax_at
from minfer_jax.sampling import argmax

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
    N x vocab never exists. On the GPUs that have kernels one of them does it. Ties go to the lowest id, as in argmax.
    """
    chex.assert_rank(hidden, 2)
    chex.assert_shape(targets, (hidden.shape[0],))
    weight = head_weight(params)
    if have_log_softmax(weight) and not config.final_softcap:
        return log_softmax_at(hidden, weight, targets)
    vocab = weight.shape[0]
    rows = -(-vocab // weight.row_step) * weight.row_step
    size = min(_VOCAB_CHUNK, rows)

    def step(carry: tuple, begin: jax.Array) -> tuple[tuple, None]:
        sums, target = carry
        start = jnp.minimum(begin, rows - size)
        z = soft_cap(linear(hidden, [weight.rows(start, size)])[0], config.final_softcap)
        # The last chunk reaches back to what has been counted, and rows that pad a tile are no tokens.
        end = jnp.minimum(size, vocab - start)
        sums = _add_chunk(sums, z, (begin - start, end, begin), weight.is_tiled)
        inside = (targets >= begin) & (targets < start + end)
        picked = jnp.take_along_axis(z, jnp.clip(targets - start, 0, size - 1)[:, None], 1)[:, 0]
        return (sums, jnp.where(inside, picked, target)), None

    n = hidden.shape[0]
    init = _no_logits(n), jnp.full(n, -jnp.inf, jnp.float32)
    (sums, target), _ = jax.lax.scan(step, init, jnp.arange(0, vocab, size, dtype=jnp.int32))
    peak, _, log_total, best = sums
    return target - peak - log_total, best


def logprobs_of(z: jax.Array, ids: jax.Array, native: bool) -> jax.Array:
    """Log-probability of one id per row of logits that are there: z [N, vocab], ids [N] -> [N] float32. native: of a
    model that runs on the native library. Chunk by chunk, so that it has the bits of :func:`token_logprobs`."""
    n, vocab = z.shape
    if not native:
        return jax.nn.log_softmax(z)[jnp.arange(n), ids]
    size = min(_VOCAB_CHUNK, vocab)
    chunks = jnp.pad(z, ((0, 0), (0, -vocab % size)), constant_values=-jnp.inf).reshape(n, -1, size).swapaxes(0, 1)
    sums, _ = jax.lax.scan(lambda sums, z: (add_logits(z, sums, (0, size, 0)), None), _no_logits(n), chunks)
    peak, _, log_total, _ = sums
    # The bound changes nothing, but keeps XLA from rounding a soft cap's product and this difference as one operation.
    return jnp.maximum(z[jnp.arange(n), ids], jnp.finfo(jnp.float32).min) - peak - log_total


def _no_logits(n: int) -> Sums:
    lowest = jnp.full(n, -jnp.inf, jnp.float32)
    return lowest, jnp.zeros(n, jnp.float32), lowest, jnp.zeros(n, jnp.int32)


def _add_chunk(sums: Sums, z: jax.Array, span: tuple[Any, Any, Any], native: bool) -> Sums:
    """As ``native_rows.add_logits``, where there is a native library and where there is none."""
    if native:
        return add_logits(z, sums, span)
    begin, end, first = span
    column = jnp.arange(z.shape[1], dtype=jnp.int32)
    z = jnp.where((column >= begin) & (column < end), z, -jnp.inf)
    peak, total, _, best = sums
    new = jnp.maximum(peak, z.max(-1))
    best = jnp.where(new > peak, argmax(z) - begin + first, best)
    shift = jnp.where(new == -jnp.inf, 0, new)  # infinity less infinity is not a number
    total = total * jnp.exp(peak - shift) + jnp.exp(z - shift[:, None]).sum(-1)
    return new, total, jnp.log(total), best
