"""Perplexity of a text by two named protocols; their numbers do not compare with each other."""

import math
import re
from functools import partial

import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError, naming, unnamed
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.batches import score_suffixes
from minfer_jax.scoring.results import Perplexity
from minfer_jax.scoring.texts import score_sequences

_LLAMA_CPP_WINDOW = 512


def perplexity(
    model: Model,
    text: str,
    n_ctx: int | None = None,
    protocol: str = "llama.cpp",
    *,
    max_chunks: int | None = None,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Perplexity:
    """Perplexity of ``text``.

    protocol "llama.cpp": as llama-perplexity measures. The text is cut into separate chunks of n_ctx ids (None: 512,
        or the model's window if that is less), what is left at the end is dropped, id 0 of each chunk becomes BOS
        where the model wants one, and only ids n_ctx / 2 + 1 and later of a chunk are scored. It takes at least two
        chunks. max_chunks: read no more.
    protocol "rolling": as lm-evaluation-harness measures. Every id is scored once, in windows of n_ctx ids (None: the
        model's window), the first after BOS (or EOS where the vocabulary has no BOS); per word and byte too.
    parse_special, batch_tokens, progress: as in ``score``.

    Raises ArgumentError naming the argument, TokenizerError, NumericsError (a log-probability is not finite).
    """
    if protocol not in ("llama.cpp", "rolling"):
        raise ArgumentError(f'protocol is {protocol!r}; choose "llama.cpp" or "rolling"')
    if n_ctx is None:
        n_ctx = min(_LLAMA_CPP_WINDOW, model.config.n_ctx) if protocol == "llama.cpp" else model.config.n_ctx
    n_ctx = check_integer("n_ctx", n_ctx, 4)
    if n_ctx > model.config.n_ctx:
        raise ArgumentError(
            f"n_ctx is {n_ctx}, more than the model's window of {model.config.n_ctx}; lower it, or load the model "
            "with a larger window"
        )
    if max_chunks is not None:
        max_chunks = check_integer("max_chunks", max_chunks, 1)
        if protocol != "llama.cpp":
            raise ArgumentError('max_chunks belongs to protocol "llama.cpp"; leave it out')
    ids = model.tokenizer.encode(text, parse_special=parse_special)
    if protocol == "llama.cpp":
        return _llama_cpp(model, text, ids, n_ctx, max_chunks, batch_tokens, progress)
    return _rolling(model, text, ids, n_ctx, batch_tokens, progress)


def _llama_cpp(
    model: Model,
    text: str,
    ids: list[int],
    n_ctx: int,
    max_chunks: int | None,
    batch_tokens: int | None,
    progress: bool | None,
) -> Perplexity:
    if len(ids) < 2 * n_ctx:
        raise ArgumentError(
            f"the text has {len(ids)} tokens and this protocol needs {2 * n_ctx}, two chunks of n_ctx; give more "
            'text, a smaller n_ctx (--n-ctx), or protocol "rolling" (--protocol rolling)'
        )
    prefix = model.tokenizer.prefix_ids()
    n = min(len(ids) // n_ctx, max_chunks or len(ids))
    chunks = [[*prefix, *ids[i * n_ctx + len(prefix) : (i + 1) * n_ctx]] for i in range(n)]
    scored = n_ctx - n_ctx // 2 - 1
    values = np.empty((n, scored), np.float64)
    with progress_bar("scoring", n, "chunk", progress) as bar:
        for i, logprobs, _ in score_suffixes(model, chunks, [scored] * n, batch_tokens, partial(naming, "chunk")):
            values[i] = logprobs
            bar.update(1)
    return _summary("llama.cpp", text, n_ctx, n, len(ids), values.ravel())


def _rolling(
    model: Model, text: str, ids: list[int], n_ctx: int, batch_tokens: int | None, progress: bool | None
) -> Perplexity:
    start = model.tokenizer.start_id()
    if ids[:1] != [start]:
        ids = [start, *ids]
    if len(ids) < 2:
        raise ArgumentError("the text is empty; give some text")
    (values,), (windows,) = score_sequences(model, [ids], n_ctx, batch_tokens, progress, unnamed)
    return _summary("rolling", text, n_ctx, windows, len(ids) - 1, np.array(values))


def _summary(protocol: str, text: str, n_ctx: int, windows: int, n_tokens: int, values: np.ndarray) -> Perplexity:
    logprob = math.fsum(values)
    n = len(values)
    nll = -logprob / n
    spread = math.fsum(values * values) / n - nll * nll
    error = math.sqrt(spread / (n - 1)) * _exp(nll) if n > 1 and spread > 0 else 0.0
    n_words, n_bytes = len(re.split(r"\s+", text)), len(text.encode())
    whole = {}
    if protocol == "rolling":
        whole = {
            "word_perplexity": _exp(-logprob / n_words),
            "byte_perplexity": _exp(-logprob / n_bytes),
            "bits_per_byte": -logprob / n_bytes / math.log(2),
        }
    return Perplexity(
        perplexity=_exp(nll),
        standard_error=error,
        nll=nll,
        logprob=logprob,
        protocol=protocol,
        n_ctx=n_ctx,
        windows=windows,
        n_tokens=n_tokens,
        n_scored=n,
        n_words=n_words,
        n_bytes=n_bytes,
        **whole,
    )


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf  # the end of float64
