"""The jitted programs of scoring and of the forward (``decode.py`` has those of decoding): one device program per call,
every input an argument, the cache donated where it is used."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.forward import forward, hidden_states
from minfer_jax.models.head import token_logprobs
from minfer_jax.models.params import Params
from minfer_jax.runtime.readback import Route, deliver

# XLA's own matrix kernels for GPUs take minutes to tune for float32 products of ours and win nothing over cuBLAS
# (H200, SmolLM2: six scoring programs in 156 s with them, in 7 s without, at the same speed).
COMPILER_OPTIONS = {"xla_gpu_enable_triton_gemm": False}

_HEAD_ROWS = 4096  # rows that meet the vocabulary at a time: with a chunk of it, 128 MiB of logits


@partial(jax.jit, static_argnames="config", compiler_options=COMPILER_OPTIONS)
def score_rows(
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    tail_ids: jax.Array | None,
    targets: jax.Array,
    until: jax.Array | None = None,
    *,
    config: Config,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of ``targets`` [n_out] after the rows ``tail_ids`` [n_out] of a batch [B, T], with no cache.

    Without tail_ids every row is scored and n_out = B * T. until [B, T]: as in ``hidden_states``; without it the batch
    is ``aligned`` as told there.
    Returns (logprob [n_out] float32, likeliest token [n_out] int32): two numbers per token leave the device.
    """
    hidden, _ = hidden_states(params, config, tokens, positions, None, tail_ids, until, until is None)
    hidden = hidden.reshape(-1, config.d_model)
    rows = math.gcd(len(hidden), _HEAD_ROWS)
    if len(hidden) <= _HEAD_ROWS or rows < 128:
        return token_logprobs(params, config, hidden, targets)
    chunks = hidden.reshape(-1, rows, config.d_model), targets.reshape(-1, rows)
    out = jax.lax.map(lambda chunk: token_logprobs(params, config, *chunk), chunks)
    return jax.tree.map(jnp.ravel, out)


@partial(jax.jit, static_argnames=("config", "destination"), donate_argnames="cache", compiler_options=COMPILER_OPTIONS)
def forward_rows(
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    cache: KVCache | None,
    tail_ids: jax.Array | None,
    *,
    config: Config,
    destination: tuple[Route, int] | None,
) -> tuple[jax.Array, KVCache | None]:
    """Write a batch [B, T] into the cache (consumed) and give the logits [n_out, vocab] of rows ``tail_ids``, or of all
    B * T: as an array, or delivered to the host by the route and buffer of ``destination``."""
    logits, cache = forward(params, config, tokens, positions, cache, tail_ids)
    logits = logits.reshape(-1, config.vocab_size)
    return (logits if destination is None else deliver(logits, *destination)), cache
