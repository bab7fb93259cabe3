"""Scoring of token ids: a continuation after a context."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from minfer_jax.arguments import check_iterable
from minfer_jax.errors import ArgumentError, ContextLengthError, Naming, naming
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.batches import score_suffixes
from minfer_jax.scoring.results import Score

TokenPair = tuple[Sequence[int], Sequence[int]]


def score_tokens(
    model: Model,
    pairs: Iterable[TokenPair],
    *,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[Score]:
    """Score continuations given as token ids: one Score per (context ids, continuation ids), in order.

    Ids are taken exactly as they are, no BOS is added, and the context has at least one id. When both together exceed
    n_ctx + 1 ids, the context is cut on the left and the Score says ``truncated``. The last id is never fed to the
    model, so that n_ctx + 1 ids fit: at n_ctx 64 and 3 continuation ids, the last 62 context ids count. A BOS at the
    beginning of the context is cut off like any other id.

    batch_tokens: token slots per batch, to trade memory for speed. progress: show a bar; None: on a terminal.

    Raises ArgumentError naming the pair (ids out of range, empty context), ContextLengthError (the continuation alone
    exceeds n_ctx), NumericsError (a log-probability is not finite).
    """
    checked = []
    for i, pair in enumerate(check_iterable("pairs", pairs)):
        with naming("pair", i):
            checked.append(_check(model, pair))
    with progress_bar("scoring", len(checked), "pair", progress) as bar:
        return score_id_pairs(model, checked, batch_tokens, partial(naming, "pair"), bar.update)


def score_id_pairs(
    model: Model,
    pairs: Sequence[TokenPair],
    batch_tokens: int | None,
    where: Naming,
    done: Callable[[int], object],
) -> list[Score]:
    """As :func:`score_tokens`, on pairs that can be scored: ids in the vocabulary, a context, a continuation that fits.

    where: names a pair in an error. done: hears how many pairs have been finished.
    """
    scores: dict[int, Score] = {}
    for i, score in id_pairs_as_finished(model, pairs, batch_tokens, where):
        scores[i] = score
        done(1)
    return [scores[i] for i in range(len(pairs))]


def id_pairs_as_finished(
    model: Model, pairs: Sequence[TokenPair], batch_tokens: int | None, where: Naming
) -> Iterator[tuple[int, Score]]:
    """As :func:`score_id_pairs`, each with its index, as batches finish: in any order."""
    n_ctx = model.config.n_ctx
    indices, sequences, n_scored = [], [], []
    for i, (context, continuation) in enumerate(pairs):
        if not continuation:
            yield i, Score(0.0, [], [], is_greedy=True, empty=True).read_by(model.tokenizer)
            continue
        indices.append(i)
        sequences.append([*context, *continuation][-(n_ctx + 1) :])
        n_scored.append(len(continuation))

    for j, logprobs, greedy in score_suffixes(model, sequences, n_scored, batch_tokens, lambda j: where(indices[j])):
        i = indices[j]
        context, continuation = pairs[i]
        values = logprobs.tolist()
        yield (
            i,
            Score(
                logprob=math.fsum(values),
                token_logprobs=values,
                tokens=list(continuation),
                is_greedy=bool(np.array_equal(greedy, continuation)),
                truncated=len(context) + len(continuation) > n_ctx + 1,
            ).read_by(model.tokenizer),
        )


def check_fits(model: Model, continuation: Sequence[int]) -> None:
    """Raise ContextLengthError unless the window holds the continuation."""
    if len(continuation) > model.config.n_ctx:
        raise ContextLengthError(
            f"the continuation has {len(continuation)} tokens and the context window {model.config.n_ctx}; shorten it, "
            "load the model with a larger n_ctx, or use score_texts, which slides the window"
        )


def _check(model: Model, pair: TokenPair) -> TokenPair:
    try:
        context, continuation = check_iterable("pair", pair)
    except (TypeError, ValueError):
        raise ArgumentError(f"got {pair!r:.80}; give (context ids, continuation ids)") from None
    context, continuation = model.tokenizer.check_ids(context), model.tokenizer.check_ids(continuation)
    if continuation and not context:
        raise ArgumentError("the context has no ids; give one at least, such as the BOS id")
    check_fits(model, continuation)
    return context, continuation
