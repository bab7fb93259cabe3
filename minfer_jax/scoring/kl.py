"""KL divergence between quantisations of a model: how far one is from another, or from what another has left in a file.

What is measured, and by which formulas, is what ``llama-perplexity --kl-divergence`` does (llama.cpp,
tools/perplexity/perplexity.cpp), whose numbers people compare quantisations by. The differences: the whole vocabulary
counts, not only what the reference gives at least e^-16, and all arithmetic is on unrounded values where there are any.
"""

import math
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import jax
import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError, NumericsError, naming
from minfer_jax.files import check_target
from minfer_jax.model import Model
from minfer_jax.models.cache import init_cache
from minfer_jax.progress import progress_bar
from minfer_jax.runtime.buckets import last_column, logit_columns, prompt_columns
from minfer_jax.runtime.runtime import Runtime, as_runtime
from minfer_jax.scoring.chunks import Chunks, check_n_ctx, cut_chunks, scored_of
from minfer_jax.scoring.divergence import ReferenceRows, Rows, compare_rows, pack_rows, reference_rows
from minfer_jax.scoring.kld_file import KLDFile
from minfer_jax.scoring.perplexity import exp_and_error, mean_and_error, summarise
from minfer_jax.scoring.reference_file import (
    ReferenceFile,
    check_vocabulary,
    open_reference,
    vocabulary_sha256,
    write_reference,
)
from minfer_jax.scoring.results import KLDivergence, Perplexity

Pieces = Iterator[ReferenceRows]
"""The rows of one chunk in the pieces that ``logit_columns`` names."""


def kl_divergence(
    model: Model,
    reference: Model | str | os.PathLike[str],
    text: str | None = None,
    n_ctx: int | None = None,
    *,
    max_chunks: int | None = None,
    parse_special: bool = False,
    progress: bool | None = None,
) -> KLDivergence:
    """KL(reference || model) of the next token, over ``text``, and what else tells two quantisations apart.

    reference: another Model with the same vocabulary, or the path of a file that :func:`save_reference` wrote, or
        llama.cpp (``llama-perplexity --kl-divergence-base``; by its rules then, without what is below e^-16). A file
        knows its text: leave text and n_ctx out, or give the same ones, which are then checked.
    n_ctx, max_chunks: the text is cut as in ``perplexity`` by protocol "llama.cpp", and the same tokens are scored.
    parse_special, progress: as in ``score``.

    A file holds distributions in 16 bits and all else unrounded. That moves the numbers of the divergence alone: a mean
    by less than a ten-thousandth of it on SmolLM2-135M, where a model's distance from itself becomes about 1e-8 nats.
    Memory above the two models: a KV cache of n_ctx positions each, and some copies of the logits of 128 tokens, never
    of a whole chunk: 230 MB in all at a vocabulary of 152,000.

    Raises ArgumentError naming the argument (also for vocabularies or texts that are not the same), TokenizerError,
    MinferError naming a file that is not a whole reference, NumericsError (a number is not finite).
    """
    if isinstance(reference, Model):
        return _from_model(model, reference, text, n_ctx, max_chunks, parse_special, progress)
    if not isinstance(reference, str | os.PathLike):
        raise ArgumentError(f"reference is {reference!r:.80}; give a Model or the path of a saved reference")
    with open_reference(reference) as file:
        file.check_vocabulary(_tokens(model), model.file.name)
        chunks = _chunks_of_file(model, file, text, n_ctx, max_chunks, parse_special)

        def read(index: int, ids: np.ndarray) -> Pieces:
            for begin, end in logit_columns(*_scored(ids)):
                yield file.read(ids[begin + 1 : end + 1])
            with naming("chunk", index):
                file.end_chunk()

        return _compare(as_runtime(model), read, chunks, file.about | {"saved": True}, file.name, file.is_cut, progress)


def save_reference(
    model: Model,
    text: str,
    path: str | os.PathLike[str],
    n_ctx: int | None = None,
    *,
    max_chunks: int | None = None,
    parse_special: bool = False,
    progress: bool | None = None,
) -> Perplexity:
    """Write the model's distributions over ``text`` to a file, for :func:`kl_divergence` with other models later.

    Arguments as there. Each scored token takes two bytes per entry of the vocabulary (SmolLM2-135M: 25 MB per chunk of
    512). The file has its name only when it is whole; one that was there is replaced.

    Returns the perplexity of the text, as ``perplexity`` gives it. Raises as :func:`kl_divergence`, and MinferError
    when the file cannot be written.
    """
    target = check_target(path, *model.file.paths)
    chunks = cut_chunks(model, text, n_ctx, max_chunks, parse_special)
    runtime = as_runtime(model)
    values = np.empty((len(chunks.ids), chunks.n_scored), np.float64)
    vocabulary = len(_tokens(model)), vocabulary_sha256(_tokens(model))
    with (
        progress_bar("saving", len(chunks.ids), "chunk", progress) as bar,
        write_reference(target, chunks, *vocabulary, model.identity()) as writer,
    ):
        for index, ids in enumerate(chunks.ids):
            parts = []
            for rows in _reference(runtime, ids):
                writer.add(pack_rows(rows))
                parts.append(np.asarray(rows.logprob))
            writer.end_chunk()
            values[index] = np.concatenate(parts)
            _check_finite(values[index], index, model.file.name)
            bar.update(1)
    return summarise("llama.cpp", text, chunks.n_ctx, len(chunks.ids), chunks.n_tokens, values.ravel())


def _from_model(
    model: Model,
    reference: Model,
    text: str | None,
    n_ctx: int | None,
    max_chunks: int | None,
    parse_special: bool,
    progress: bool | None,
) -> KLDivergence:
    if text is None:
        raise ArgumentError("text is None; give a text, or a saved reference, which has its own")
    tokens = _tokens(reference)
    check_vocabulary(_tokens(model), model.file.name, len(tokens), vocabulary_sha256(tokens), reference.file.name)
    chunks = cut_chunks(model, text, n_ctx, max_chunks, parse_special)
    check_n_ctx(reference, chunks.n_ctx)
    theirs = cut_chunks(reference, text, chunks.n_ctx, max_chunks, parse_special)
    if not np.array_equal(theirs.ids, chunks.ids):
        raise ArgumentError(
            f"{model.file.name} and {reference.file.name} read this text as different ids, though their vocabularies "
            "are the same; their BOS rules or pre-tokenizers differ (pre, --pre)"
        )
    other = as_runtime(reference)
    about = reference.identity() | {"saved": False}
    return _compare(
        as_runtime(model), lambda _, ids: _reference(other, ids), chunks, about, other.file.name, False, progress
    )


def _compare(
    runtime: Runtime,
    reference: Callable[[int, np.ndarray], Pieces],
    chunks: Chunks,
    about: dict[str, Any],
    name: str,
    cut: bool,
    progress: bool | None,
) -> KLDivergence:
    """The result, from the pieces of the reference's rows that ``reference`` gives for a chunk's index and ids; its
    provenance, the name of its file, and whether it is cut (``compare_rows``)."""
    native = runtime.params.embedding.is_tiled
    parts: list[Rows] = []
    with progress_bar("comparing", len(chunks.ids), "chunk", progress) as bar:
        for index, ids in enumerate(chunks.ids):
            pieces = zip(_logits(runtime, ids), reference(index, ids), strict=True)
            rows = _joined(
                [
                    jax.device_get(compare_rows(z, targets, theirs, native=native, cut=cut))
                    for (z, targets), theirs in pieces
                ]
            )
            _check_finite(np.asarray(rows.logprob), index, runtime.file.name)
            _check_finite(np.asarray(rows.kl + rows.reference_logprob), index, name)
            parts.append(rows)
            bar.update(1)
    return _result(_joined(parts), chunks, runtime.identity(), about)


def _joined(parts: list[Rows]) -> Rows:
    return Rows(*map(np.concatenate, zip(*parts, strict=True)))


def _scored(ids: np.ndarray) -> tuple[int, int]:
    """Of the ids of a chunk, the first row of logits that is wanted, and the end of them: the last id is never fed."""
    n = len(ids) - 1
    return n - scored_of(len(ids)), n


def _logits(runtime: Runtime, ids: np.ndarray) -> Iterator[tuple[jax.Array, np.ndarray]]:
    """Of the scored half of a chunk: logits float32 [rows, vocab] on the device, and the ids [rows] that they are to
    predict, piece by piece."""
    first, n = _scored(ids)
    cache = init_cache(runtime.config, 1, len(ids))
    positions = np.arange(n, dtype=np.int32)[None]
    for begin, end in pairwise((0, *prompt_columns(first, 1, jax.default_backend()))):
        last = last_column(1, end - begin)
        _, cache = runtime.prefill(ids[None, begin:end], positions[:, begin:end], cache, last)
    for begin, end in logit_columns(first, n):
        z, cache = runtime.prefill(ids[None, begin:end], positions[:, begin:end], cache, None)
        yield z.reshape(end - begin, -1), ids[begin + 1 : end + 1]


def _reference(runtime: Runtime, ids: np.ndarray) -> Pieces:
    """The rows of a model."""
    native = runtime.params.embedding.is_tiled
    for z, targets in _logits(runtime, ids):
        yield reference_rows(z, targets, native=native)


def _chunks_of_file(
    model: Model,
    file: ReferenceFile | KLDFile,
    text: str | None,
    n_ctx: int | None,
    max_chunks: int | None,
    parse_special: bool,
) -> Chunks:
    """The chunks of a saved reference, no more than max_chunks; a text has to be theirs."""
    kept = file.chunks
    if n_ctx is not None and n_ctx != kept.n_ctx:
        raise ArgumentError(f"n_ctx is {n_ctx}, and {file.name} was saved with {kept.n_ctx}; leave it out")
    check_n_ctx(model, kept.n_ctx)
    ids = file.ids_after(model.tokenizer.prefix_ids())
    if text is not None:
        given = cut_chunks(model, text, kept.n_ctx, len(ids), parse_special)
        if not np.array_equal(given.ids, ids):
            raise ArgumentError(f"{file.name} was saved of another text, or read as other ids; leave the text out")
    n = len(ids) if max_chunks is None else check_integer("max_chunks", max_chunks, 1)
    return Chunks(ids[:n], kept.n_tokens)


def _tokens(model: Model) -> list[str]:
    return model.file.metadata.strings("tokenizer.ggml.tokens")


def _check_finite(values: np.ndarray, chunk: int, name: str) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        raise NumericsError(
            f"chunk {chunk}: the distribution at scored token {int(finite.argmin())} is not finite; the weights of "
            f"{name} hold NaN or infinity"
        )


def _result(rows: Rows, chunks: Chunks, model: dict[str, Any], reference: dict[str, Any]) -> KLDivergence:
    """Formulas as in llama.cpp's tool: standard errors of means; of exp by first order; of the log ratio from the
    variances and the covariance of the two, which is the error of the mean difference; quantiles between neighbours."""
    kl = np.asarray(rows.kl, np.float64)
    nll, reference_nll = (-np.asarray(values, np.float64) for values in (rows.logprob, rows.reference_logprob))
    delta = np.exp(-nll) - np.exp(-reference_nll)
    n = len(kl)
    mean, error = mean_and_error(kl)
    median, q90, q95, q99, q999 = np.quantile(kl, [0.5, 0.9, 0.95, 0.99, 0.999]).tolist()
    same = float(np.mean(rows.same_top))
    square, square_error = mean_and_error(delta * delta)
    rms = math.sqrt(square)
    delta_mean, delta_error = mean_and_error(delta)
    perplexity, perplexity_error = exp_and_error(*mean_and_error(nll))
    reference_perplexity, reference_perplexity_error = exp_and_error(*mean_and_error(reference_nll))
    ratio, ratio_error = exp_and_error(*mean_and_error(nll - reference_nll))
    return KLDivergence(
        mean=mean,
        standard_error=error,
        median=median,
        quantile_90=q90,
        quantile_95=q95,
        quantile_99=q99,
        quantile_999=q999,
        maximum=float(kl.max()),
        same_top=100 * same,
        same_top_error=100 * math.sqrt(same * (1 - same) / (n - 1)) if n > 1 else 0.0,
        perplexity=perplexity,
        perplexity_error=perplexity_error,
        reference_perplexity=reference_perplexity,
        reference_perplexity_error=reference_perplexity_error,
        perplexity_ratio=ratio,
        perplexity_ratio_error=ratio_error,
        rms_delta_p=100 * rms,
        rms_delta_p_error=100 * square_error / (2 * rms) if rms else 0.0,
        mean_delta_p=100 * delta_mean,
        mean_delta_p_error=100 * delta_error,
        protocol="llama.cpp",
        n_ctx=chunks.n_ctx,
        windows=len(chunks.ids),
        n_tokens=chunks.n_tokens,
        n_scored=n,
        model=model,
        reference=reference,
    )
