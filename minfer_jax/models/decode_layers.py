"""The layers of a decode step of one row on a GPU: one kernel of ``pallas_kernels`` for each run of layers."""

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models import decode_attention
from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.params import Layer, Params
from minfer_jax.quant import Weight
from minfer_jax.quant.fragments import Fragments
from pallas_kernels import decode_layers

MOST_BYTES = 64 << 20
"""Of a layer's weights, for which one kernel is worth it. With 8 MB a layer, where launches are what costs, an H200
generated 2,390 tokens a second in place of 2,101, with 140 MB, where bytes are, 561 in place of 573."""


def serves(params: Params, config: Config, x: jax.Array, cache: KVCache | None) -> bool:
    """Whether every run has a kernel that is worth it: x [1, 1, D], what ``decode_attention.serves`` asks for, a norm
    in front of attention and FFN alone, matrices whose types have kernels, and few bytes."""
    if cache is None or x.shape[0] != 1:
        return False
    return all(_is_served(run, config, x, cache) for run in params.runs)


def _is_served(run: Layer, config: Config, x: jax.Array, cache: KVCache) -> bool:
    if not decode_attention.serves(run, config, x, cache) or (layers := _layers(run)) is None:
        return False
    if sum(matrix.words.nbytes for matrix in layers.matrices) > MOST_BYTES * run.attn_norm.shape[0]:
        return False
    return decode_layers.serves(layers, cache.k.shape, config.rope.dim // 2, config.activation)


def add_layers(
    params: Params,
    config: Config,
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    positions: jax.Array,
    cache: KVCache | None,
) -> tuple[jax.Array, KVCache]:
    """The residual stream [1, 1, D] behind all layers, and the cache. cos, sin: [tables, 1, 1, half]; positions
    [1, 1]."""
    assert cache is not None  # see serves
    windows, tables = np.array(config.windows, np.int32), np.array(config.rope_tables, np.int32)
    first, y = 0, x[0]
    for run in params.runs:
        layers = _layers(run)
        assert layers is not None
        own = slice(first, first + run.attn_norm.shape[0])
        y, keys, values = decode_layers.decode_layers(
            y,
            layers,
            cos[:, 0, 0],
            sin[:, 0, 0],
            jnp.asarray(tables[own]),
            jnp.asarray(windows[own]),
            positions[0],
            cache.k,
            cache.v,
            first,
            activation=config.activation,
            eps=config.rms_eps,
            scale=config.attention_scale,
        )
        cache, first = KVCache(keys, values), own.stop
    return y[None], cache


def _layers(run: Layer) -> decode_layers.Layers | None:
    """A run as the kernel takes it, if it does."""
    if run.attn_post_norm is not None or run.ffn_post_norm is not None:
        return None
    if run.qkv is not None:
        qkv = [_joined(run.qkv)]
    else:
        apart = ((run.q, run.q_bias), (run.k, run.k_bias), (run.v, run.v_bias))
        qkv = [_single(weight, bias, run.attn_norm) for weight, bias in apart]
    o, down = _single(run.o, run.o_bias), _single(run.down, run.down_bias)
    found = tuple(matrix for matrix in qkv if matrix is not None)
    if run.gate_up is None or o is None or down is None or len(found) < len(qkv):
        return None
    return decode_layers.Layers(found, o, _joined(run.gate_up), down, run.q_norm, run.k_norm)


def _joined(f: Fragments) -> decode_layers.Matrix:
    return decode_layers.Matrix(f.words, f.layout, f.norm, f.bias)


def _single(weight: Weight, bias: jax.Array | None, norm: jax.Array | None = None) -> decode_layers.Matrix | None:
    f = weight.fragments
    return None if f is None else decode_layers.Matrix(f.words, f.layout, norm, bias)
