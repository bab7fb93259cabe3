"""KL divergence of whole rows of logits on the device, from a reference that is logits too or was packed to 16 bits."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.head import logprobs_of
from minfer_jax.runtime.jitted import COMPILER_OPTIONS
from minfer_jax.sampling import argmax

RANGE = 32.0
"""Nats below the likeliest token at which packed log-probabilities end; what is less likely is packed as that."""

_CODES = 65535
_ROWS = 32  # compared at a time, so that what XLA keeps between its loops is small

Array = jax.Array | np.ndarray


class ReferenceRows(NamedTuple):
    """Distributions of the reference: token v of row n has log-probability floor[n] + step[n] * values[n, v].

    values: [N, vocab], logits in float32 or codes in uint16. step, floor: [N] float32. logprob: [N] float32, of the
    target, as it was before packing. top: [N] int32, the likeliest token, the lowest id of equals.
    """

    values: Array
    step: Array
    floor: Array
    logprob: Array
    top: Array


class Rows(NamedTuple):
    """What is kept of each row, [N]: kl, KL(reference || model) in nats; logprob and reference_logprob of the target;
    same_top, whether both find the same token likeliest."""

    kl: Array
    logprob: Array
    reference_logprob: Array
    same_top: Array


@partial(jax.jit, static_argnames="native", compiler_options=COMPILER_OPTIONS)
def reference_rows(z: jax.Array, targets: jax.Array, *, native: bool) -> ReferenceRows:
    """A reference from its logits z [N, vocab] float32 and the ids [N] int32 that are scored. native: of a model that
    runs on the native library, see ``logprobs_of``."""

    def of(z: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return jax.nn.logsumexp(z, axis=-1), logprobs_of(z, targets, native), argmax(z)

    total, logprob, top = _by_rows(of, z, targets)
    return ReferenceRows(z, jnp.ones_like(total), -total, logprob, top)


@partial(jax.jit, compiler_options=COMPILER_OPTIONS)
def pack_rows(rows: ReferenceRows) -> ReferenceRows:
    """The same in 16 bits: log-probabilities in 65,535 equal steps from the least (or RANGE below the greatest) to the
    greatest, as llama.cpp's tool keeps them (over 16 nats). Half a step is 0.00024 nats at most."""
    z = rows.values
    high = z.max(-1)
    low = jnp.maximum(z.min(-1), high - RANGE)
    step = (high - low) / _CODES
    codes = jnp.round((z - low[:, None]) / jnp.where(step > 0, step, 1.0)[:, None])
    return rows._replace(values=jnp.clip(codes, 0, _CODES).astype(jnp.uint16), step=step, floor=rows.floor + low)


@partial(jax.jit, static_argnames=("native", "cut"), compiler_options=COMPILER_OPTIONS)
def compare_rows(z: jax.Array, targets: jax.Array, reference: ReferenceRows, *, native: bool, cut: bool) -> Rows:
    """Logits z [N, vocab] float32 of the model against the reference, row by row.

    KL = sum p (log p - log q) is computed as sum p (exp(d) - 1 - d) with d = log q - log p, which is the same because
    both p and q sum to 1. No term of it is negative and nothing cancels, so that float32 is enough for the smallest
    divergences, and roundings of the two normalisations (and of packing) have no first-order effect.
    cut: the reference is of llama.cpp, which leaves out what has a log-probability of -16 or less; the sum is then its
    own, sum p (log p - log q) over the rest.
    """
    return _by_rows(partial(_compare, native=native, cut=cut), z, targets, reference)


def _compare(z: jax.Array, targets: jax.Array, reference: ReferenceRows, native: bool, cut: bool) -> Rows:
    values, step, floor, reference_logprob, top = reference
    log_p = values.astype(jnp.float32) * step[:, None] + floor[:, None]
    log_q = z - jax.nn.logsumexp(z, axis=-1)[:, None]
    d = log_q - log_p
    p = jnp.exp(log_p)
    small = d * d * (1 / 2 + d * (1 / 6 + d * (1 / 24 + d / 120)))
    large = jnp.where(d > 1, jnp.exp(log_q) - p * (1 + d), p * (jnp.expm1(jnp.minimum(d, 1)) - d))
    terms = jnp.where(jnp.abs(d) < 0.1, p * small, large)
    if cut:
        terms = jnp.where(log_p > -16, -p * d, 0)
    return Rows(_sum(terms), logprobs_of(z, targets, native), reference_logprob, argmax(z) == top)


def _by_rows(function: Callable[..., Any], *arrays: Any) -> Any:
    """``function`` of arrays whose first axis is rows, _ROWS of them at a time; the last time reaches back."""
    n = len(arrays[0])
    size = min(_ROWS, n)
    starts = np.minimum(np.arange(0, n, size), n - size)

    def step(start: jax.Array) -> Any:
        return function(*jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, size), arrays))

    out = jax.lax.map(step, jnp.asarray(starts))
    group = np.arange(n) // size
    return jax.tree.map(lambda x: x[group, np.arange(n) - starts[group]], out)


def _sum(x: jax.Array) -> jax.Array:
    """[N, vocab] -> [N], in two stages, which keep roundings small whatever order XLA adds in."""
    n, vocab = x.shape
    return jnp.pad(x, ((0, 0), (0, -vocab % 512))).reshape(n, -1, 512).sum(-1).sum(-1)
