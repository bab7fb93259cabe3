"""minfer-jax: exact, batched scoring and generation from GGUF models, as pure functions on JAX.

import minfer_jax as mj
model = mj.load("smollm2-135m")
scores = mj.score(model, [("The capital of France is", " Paris")])
"""

from minfer_jax import viz
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
from minfer_jax.generation import Generation, TextStream, generate, generate_batch, stream
from minfer_jax.gguf.requantize import requantize
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import Config, KVCache, Params, forward, hidden_states, init_cache, token_logprobs
from minfer_jax.quant import QuantTensor, matmul
from minfer_jax.runtime import CacheInfo, Runtime, TraceRecord
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import (
    Columns,
    DatasetScores,
    KLDivergence,
    MultipleChoice,
    Perplexity,
    Score,
    TextScore,
    kl_divergence,
    multiple_choice,
    multiple_choice_batch,
    perplexity,
    save_reference,
    score,
    score_dataset,
    score_stream,
    score_texts,
    score_tokens,
)
from minfer_jax.tokenizer import Tokenizer

__all__ = [
    "ArgumentError",
    "ChatTemplateError",
    "CacheInfo",
    "Columns",
    "Config",
    "ContextLengthError",
    "DatasetScores",
    "GGUFError",
    "Generation",
    "KLDivergence",
    "KVCache",
    "MinferError",
    "Model",
    "MultipleChoice",
    "NumericsError",
    "Params",
    "Perplexity",
    "QuantTensor",
    "Runtime",
    "Sampler",
    "Score",
    "TextScore",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
    "TraceRecord",
    "UnsupportedError",
    "forward",
    "generate",
    "generate_batch",
    "hidden_states",
    "init_cache",
    "kl_divergence",
    "load",
    "matmul",
    "multiple_choice",
    "multiple_choice_batch",
    "perplexity",
    "requantize",
    "save_reference",
    "score",
    "score_dataset",
    "score_stream",
    "score_texts",
    "score_tokens",
    "stream",
    "token_logprobs",
    "viz",
]

__version__ = "0.1.0"
