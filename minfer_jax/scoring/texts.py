"""Scoring of whole texts, in as many context windows as they need."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from minfer_jax.arguments import check_iterable
from minfer_jax.errors import Naming, naming
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.batches import score_suffixes
from minfer_jax.scoring.results import TextScore
from minfer_jax.tokenizer import Tokenizer
from minfer_jax.tokenizer.bos import with_bos


def score_texts(
    model: Model,
    texts: Iterable[str],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[TextScore]:
    """Log-probability of every token of each text: one TextScore per text, in order.

    A text of n ids has n values. With BOS in front by the model's policy the first id has a log-probability too;
    without, its value is None. A text longer than the context window is read in windows (:func:`windows_of`), each id
    scored once. An empty text has no ids and logprob 0.0.
    parse_special, batch_tokens, progress: as in ``score``.

    Raises ArgumentError or TokenizerError naming the text by its index, NumericsError (a value is not finite).
    """
    encoded = []
    for i, text in enumerate(check_iterable("texts", texts)):
        with naming("text", i):
            encoded.append(model.tokenizer.encode(text, parse_special=parse_special))
    where = partial(naming, "text")
    values, _ = score_sequences(model, encoded, model.config.n_ctx, batch_tokens, progress, where)
    return [text_score(model, *result) for result in zip(encoded, values, strict=True)]


def text_score(model: Model, ids: list[int], logprobs: list[float]) -> TextScore:
    """The result for a text's ids, with the log-probabilities of all but the first."""
    windows = len(windows_of(len(ids), model.config.n_ctx))
    values: list[float | None] = [None, *logprobs]  # of the first id there is none
    n = len(model.tokenizer.prefix_ids())  # with which the ids begin
    score = TextScore(math.fsum(logprobs), values[n : len(ids)], ids[n:], ids[:n], windows)
    return score.read_by(model.tokenizer)


def from_start(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The ids after the one to begin from (``tokenizer.start_id()``), which makes the first of them scorable too."""
    return with_bos(ids, bos=tokenizer.start_id(), file_adds=True, wanted=None)


def score_sequences(
    model: Model,
    sequences: Sequence[Sequence[int]],
    n_ctx: int,
    batch_tokens: int | None,
    progress: bool | None,
    where: Naming,
) -> tuple[list[list[float]], list[int]]:
    """Log-probabilities of all ids but the first of each sequence, and how many windows each took.

    The windows of all sequences share batches. where: names a sequence in an error.
    """
    values: dict[int, list[float]] = dict(sequences_as_finished(model, sequences, n_ctx, batch_tokens, progress, where))
    return [values[i] for i in range(len(sequences))], [len(windows_of(len(ids), n_ctx)) for ids in sequences]


def sequences_as_finished(
    model: Model,
    sequences: Sequence[Sequence[int]],
    n_ctx: int,
    batch_tokens: int | None,
    progress: bool | None,
    where: Naming,
) -> Iterator[tuple[int, list[float]]]:
    """As :func:`score_sequences`: log-probabilities of each sequence with its index, when its last window is done."""
    cuts = [windows_of(len(ids), n_ctx) for ids in sequences]
    owners = [(i, *window) for i, windows in enumerate(cuts) for window in windows]
    pieces = [sequences[i][start:end] for i, start, _, end in owners]
    n_scored = [end - first for _, _, first, end in owners]
    values = [[math.nan] * max(0, len(ids) - 1) for ids in sequences]
    left = [len(windows) for windows in cuts]
    yield from ((i, []) for i, n in enumerate(left) if not n)
    with progress_bar("scoring", len(owners), "window", progress) as bar:
        for j, logprobs, _ in score_suffixes(model, pieces, n_scored, batch_tokens, lambda j: where(owners[j][0])):
            i, _, first, end = owners[j]
            values[i][first - 1 : end - 1] = logprobs.tolist()
            bar.update(1)
            left[i] -= 1
            if not left[i]:
                yield i, values[i]


def windows_of(n: int, n_ctx: int) -> list[tuple[int, int, int]]:
    """How a sequence of n ids is read: (start, first, end) of windows, where ids[start:end] is taken and
    ids[first:end] scored; every id but number 0 is scored once.

    The rule of lm-evaluation-harness (get_rolling_token_windows with one id of context, made disjoint): full windows
    of n_ctx new ids after one id of context; the last one reaches back until it is full. n_ctx ids are fed to the
    model at a time, and the last id of a window is not fed.
    """
    bounds = [*range(1, n, n_ctx), n]
    return [(max(0, end - n_ctx - 1), first, end) for first, end in pairwise(bounds)]
