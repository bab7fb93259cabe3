"""minfer-jax: exact, batched scoring and generation from GGUF models, as pure functions on JAX.

    import minfer_jax as mj
    model = mj.load("smollm2-135m")
    scores = mj.score(model, [("The capital of France is", " Paris")])
"""

from minfer_jax.errors import (
    ArgumentError,
    ChatTemplateError,
    ContextLengthError,
    GGUFError,
    MinferError,
    NumericsError,
    TokenizerError,
    UnsupportedError,
)
from minfer_jax.load import Model, load
from minfer_jax.models import Config, KVCache, Params, forward, hidden_states, init_cache, token_logprobs
from minfer_jax.quant import QuantTensor, matmul

__all__ = [
    "ArgumentError",
    "ChatTemplateError",
    "Config",
    "ContextLengthError",
    "GGUFError",
    "KVCache",
    "MinferError",
    "Model",
    "NumericsError",
    "Params",
    "QuantTensor",
    "TokenizerError",
    "UnsupportedError",
    "forward",
    "hidden_states",
    "init_cache",
    "load",
    "matmul",
    "token_logprobs",
]
