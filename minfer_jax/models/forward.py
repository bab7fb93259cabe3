"""The forward pass: pure, total over its arguments, one device program, positions as data.

Read downwards: embed, every layer's attention and FFN, final norm, head. See ``head.py`` for what turns the final
hidden states into logits or log-probabilities.
"""

from collections.abc import Callable
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.errors import ArgumentError
from minfer_jax.models import attention, decode_attention, decode_layers, head, native_attention
from minfer_jax.models.blocks import add_projection, feed_forward, project_heads, project_qkv
from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.linear import rms_norm
from minfer_jax.models.params import Layer, Params
from minfer_jax.models.rope import angles, magnitude
from minfer_jax.quant.fragments import takes


@partial(jax.jit, static_argnames="config")
def forward(
    params: Params,
    config: Config,
    tokens: jax.Array,
    positions: jax.Array,
    cache: KVCache | None = None,
    tail_ids: jax.Array | None = None,
) -> tuple[jax.Array, KVCache | None]:
    """Logits of a batch of token runs, and the cache with those runs written into it.

    A pure function under ``jax.jit``: it compiles once for each shape, alone as well as inside a function of yours.

    params, config: of one model; config is static.
    tokens: [B, T] int32 ids below vocab_size. positions: [B, T] int32, the place of each token in its own sequence,
        -1 for padding; any row may start anywhere, so long as earlier positions are in the cache.
    cache: KVCache of B rows to read and extend; None attends within the tokens given, and None comes back. Positions
        at or beyond its length are not written: keep them below.
        The caller's cache is not changed; to reuse its memory, jit again with ``static_argnames="config",
        donate_argnames="cache"``, after which the old one cannot be used.
    tail_ids: [n_out] int32, indices into the B * T flattened rows; only these rows go through the last layer's FFN,
        the final norm and the head. Leave it out when every row is wanted.

    Returns (logits, cache): logits float32 [B, T, vocab], or [n_out, vocab] with tail_ids. Rows of padding tokens
    mean nothing. Ids out of range are not checked here (``Tokenizer.check_ids`` does).

    Raises AssertionError (chex) for a wrong rank or shape, also of a cache or weights that are not of ``config``;
    ArgumentError for no tokens, or more than the cache holds.
    """
    hidden, cache = hidden_states(params, config, tokens, positions, cache, tail_ids)
    return head.logits(params, config, hidden), cache


@partial(jax.jit, static_argnames=("config", "aligned"))
def hidden_states(
    params: Params,
    config: Config,
    tokens: jax.Array,
    positions: jax.Array,
    cache: KVCache | None = None,
    tail_ids: jax.Array | None = None,
    until: jax.Array | None = None,
    aligned: bool = False,
) -> tuple[jax.Array, KVCache | None]:
    """As :func:`forward` without the head: float32 [B, T, D] or [n_out, D], after the final norm.

    until: [B, T] int32, for packed weights of the native kernels and without a cache: a row holds many texts that
        share prefixes, and token t is seen, at the earlier of their positions, by tokens t .. until - 1 of the row.
        A token's numbers are bit for bit those of its text alone if it stands at its position, or a multiple of 16
        places after it.
    aligned: a promise that every row is one text from position 0 on, which starts in its first column, and then
        padding; attention then needs no mask.
    """
    chex.assert_rank([tokens, positions], 2)
    chex.assert_equal_shape([tokens, positions])
    B, T = tokens.shape
    if tokens.size == 0:
        raise ArgumentError(f"tokens is [{B}, {T}]; there has to be one at least")
    chex.assert_shape(params.embedding, (config.vocab_size, config.d_model))
    tokens, positions = tokens.astype(jnp.int32), positions.astype(jnp.int32)
    if cache is not None:
        chex.assert_shape([cache.k, cache.v], (config.n_layers, B, config.n_kv_heads, None, config.head_dim))
        if T > cache.length:
            raise ArgumentError(f"{T} tokens do not fit a cache of {cache.length} positions; make it longer")
    if tail_ids is not None:
        chex.assert_rank(tail_ids, 1)
    if until is not None:
        chex.assert_shape(until, (B, T))
        if cache is not None or not params.embedding.is_tiled:
            raise ArgumentError("until is for implementation 'ffi' without a cache; leave it out")
        until = until.astype(jnp.int32)

    x = params.embedding.take(tokens) * config.embedding_scale  # [B, T, D]
    rotations = angles(params.rope_freqs, positions, magnitude(config.rope))
    if tail_ids is None and decode_layers.serves(params, config, x, cache):
        x, cache = decode_layers.add_layers(params, config, x, *rotations, positions, cache)
        return rms_norm(x, params.final_norm, config.rms_eps, params.embedding), cache
    windows, tables = np.array(config.windows, np.int32), np.array(config.rope_tables, np.int32)

    def add_attention(layer: Layer, index: jax.Array | int, x: jax.Array, cache: KVCache | None) -> tuple:
        """Residual plus attention of layer ``index``; the new keys and values go to the cache first."""
        table, window = (x[index] if isinstance(index, int) else jnp.asarray(x)[index] for x in (tables, windows))
        cos, sin = (r[table] for r in rotations)
        where = cos, sin, positions, window, cache, index
        if decode_attention.serves(layer, config, x, cache):
            h, cache = decode_attention.attend(config, layer, project_heads(layer, config, x), *where)
        else:
            args = config, layer, *project_qkv(layer, config, x, positions), *where
            h, cache = native_attention.attend(*args, until) if layer.q.is_tiled else attention.attend(*args, aligned)
        return add_projection(x, h, layer.o, layer.o_bias, layer.attn_post_norm, config, positions), cache

    first = 0
    for n, run in enumerate(params.runs):
        size = run.attn_norm.shape[0]
        is_last = n == len(params.runs) - 1
        x, cache = _scan_layers(run, config, first, size - is_last, x, positions, cache, add_attention)
        first += size

    last = params.runs[-1].at(size - 1)
    x, cache = add_attention(last, config.n_layers - 1, x, cache)
    at: jax.Array | None = positions
    if tail_ids is not None:
        x, at = x.reshape(B * T, -1)[tail_ids], None
    x = feed_forward(last, config, x, at)
    return rms_norm(x, params.final_norm, config.rms_eps, params.embedding), cache


def _scan_layers(
    run: Layer,
    config: Config,
    first: int,
    count: int,
    x: jax.Array,
    positions: jax.Array,
    cache: KVCache | None,
    add_attention: Callable[..., tuple],
) -> tuple[jax.Array, KVCache | None]:
    """The first ``count`` layers of a run, traced once, or one after the other in a decode step on a GPU."""
    if run.q.implementation == "pallas" and takes(x):  # few kernels, which are captured as one graph
        for i in range(count):
            layer = run.at(i)
            x, cache = add_attention(layer, first + i, x, cache)
            x = feed_forward(layer, config, x, positions)
        return x, cache
    if count == 0:
        return x, cache

    def step(i: jax.Array, carry: tuple) -> tuple:
        x, cache = carry
        layer = run.at(i)
        x, cache = add_attention(layer, first + i, x, cache)
        return feed_forward(layer, config, x, positions), cache

    # The loop's own counter is the index, not an array of numbers: XLA then multiplies with weights where they lie.
    return jax.lax.fori_loop(0, count, step, (x, cache))
