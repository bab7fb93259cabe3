"""The model graph: config, weights, cache, and the pure forward."""

from minfer_jax.models.arch import ARCHITECTURES
from minfer_jax.models.cache import KVCache, init_cache
from minfer_jax.models.config import Config, Rope
from minfer_jax.models.forward import forward, hidden_states
from minfer_jax.models.head import logits, token_logprobs
from minfer_jax.models.params import Layer, Params

__all__ = [
    "ARCHITECTURES",
    "Config",
    "KVCache",
    "Layer",
    "Params",
    "Rope",
    "forward",
    "hidden_states",
    "init_cache",
    "logits",
    "token_logprobs",
]
