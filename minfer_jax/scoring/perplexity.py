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
from minfer_jax.scoring.chunks import Chunks, check_n_ctx, cut_chunks
from minfer_jax.scoring.results import Perplexity
from minfer_jax.scoring.texts import from_start, score_sequences


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

    protocol: "llama.cpp" measures as llama-perplexity does. The text is cut into separate chunks of n_ctx ids, what is
        left at the end is dropped, id 0 of each chunk becomes BOS where the model wants one, and only ids n_ctx / 2 + 1
        and later of a chunk are scored. It takes at least two chunks.
        "rolling" measures as lm-evaluation-harness does. Every id is scored once, in windows of n_ctx ids, the first
        after BOS (or EOS where the vocabulary has no BOS); per word and byte too.
    n_ctx: None takes 512 for "llama.cpp", or the model's window if that is less, and the model's window for "rolling".
    max_chunks: of "llama.cpp": read no more.
    parse_special, batch_tokens, progress: as in ``score``.

    Raises ArgumentError naming the argument, TokenizerError, NumericsError (a log-probability is not finite).
    """
    if protocol not in ("llama.cpp", "rolling"):
        raise ArgumentError(f'protocol is {protocol!r}; choose "llama.cpp" or "rolling"')
    if protocol == "llama.cpp":
        instead = ', or protocol "rolling" (--protocol rolling)'
        chunks = cut_chunks(model, text, n_ctx, max_chunks, parse_special, instead)
        return _llama_cpp(model, text, chunks, batch_tokens, progress)
    n_ctx = check_n_ctx(model, n_ctx)
    if max_chunks is not None:
        check_integer("max_chunks", max_chunks, 1)
        raise ArgumentError('max_chunks belongs to protocol "llama.cpp"; leave it out')
    ids = model.tokenizer.encode(text, parse_special=parse_special)
    return _rolling(model, text, ids, n_ctx, batch_tokens, progress)


def _llama_cpp(model: Model, text: str, chunks: Chunks, batch_tokens: int | None, progress: bool | None) -> Perplexity:
    n, scored = len(chunks.ids), chunks.n_scored
    values = np.empty((n, scored), np.float64)
    with progress_bar("scoring", n, "chunk", progress) as bar:
        ids = chunks.ids.tolist()
        for i, logprobs, _ in score_suffixes(model, ids, [scored] * n, batch_tokens, partial(naming, "chunk")):
            values[i] = logprobs
            bar.update(1)
    return summarise("llama.cpp", text, chunks.n_ctx, n, chunks.n_tokens, values.ravel())


def _rolling(
    model: Model, text: str, ids: list[int], n_ctx: int, batch_tokens: int | None, progress: bool | None
) -> Perplexity:
    ids = from_start(model.tokenizer, ids)
    if len(ids) < 2:
        raise ArgumentError("the text is empty; give some text")
    (values,), (windows,) = score_sequences(model, [ids], n_ctx, batch_tokens, progress, unnamed)
    return summarise("rolling", text, n_ctx, windows, len(ids) - 1, np.array(values))


def summarise(protocol: str, text: str, n_ctx: int, windows: int, n_tokens: int, values: np.ndarray) -> Perplexity:
    """The result of a protocol from the log-probabilities float64 [n_scored] of the ids that it scores."""
    logprob = math.fsum(values)
    n = len(values)
    nll = -logprob / n
    value, error = exp_and_error(nll, mean_and_error(values)[1])
    n_words, n_bytes = len(re.split(r"\s+", text)), len(text.encode())
    whole = {}
    if protocol == "rolling":
        whole = {
            "word_perplexity": _exp(-logprob / n_words),
            "byte_perplexity": _exp(-logprob / n_bytes),
            "bits_per_byte": -logprob / n_bytes / math.log(2),
        }
    return Perplexity(
        perplexity=value,
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


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of float64 [n], and its standard error sqrt((mean of squares - squared mean) / (n - 1)), the rule of
    llama.cpp's tool; 0 for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    spread = math.fsum((values - mean) ** 2) / n
    return mean, math.sqrt(spread / (n - 1)) if n > 1 else 0.0


def exp_and_error(x: float, error: float) -> tuple[float, float]:
    """exp(x), and its error to first order."""
    value = _exp(x)
    return value, value * error if error else 0.0


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf  # the end of float64
