"""Scoring of token ids: a continuation after a context."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minfer_jax.errors import ArgumentError, ContextLengthError
from minfer_jax.model import Model
from minfer_jax.scoring.batches import naming, score_suffixes
from minfer_jax.scoring.progress import progress_bar
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
    checked = [_check(model, i, pair) for i, pair in enumerate(pairs)]
    with progress_bar(progress, len(checked), "pair") as bar:
        return score_id_pairs(model, checked, batch_tokens, "pair {}".format, bar.update)


def score_id_pairs(
    model: Model,
    pairs: Sequence[TokenPair],
    batch_tokens: int | None,
    name: Callable[[int], str],
    done: Callable[[int], object],
) -> list[Score]:
    """As :func:`score_tokens`, on ids that are in the vocabulary. ``done`` hears how many pairs have been finished."""
    n_ctx = model.config.n_ctx
    scores: dict[int, Score] = {}
    indices, sequences, n_scored = [], [], []
    for i, (context, continuation) in enumerate(pairs):
        if not continuation:
            scores[i] = Score(0.0, [], [], is_greedy=True, empty=True)
            continue
        if len(continuation) > n_ctx:
            raise ContextLengthError(
                f"{name(i)}: the continuation has {len(continuation)} tokens and the context window {n_ctx}; shorten "
                "it, load the model with a larger n_ctx, or use score_texts, which slides the window"
            )
        if not context:
            raise ArgumentError(f"{name(i)}: the context has no ids; give one at least, such as the BOS id")
        indices.append(i)
        sequences.append([*context, *continuation][-(n_ctx + 1) :])
        n_scored.append(len(continuation))
    done(len(scores))

    for j, logprobs, greedy in score_suffixes(model, sequences, n_scored, batch_tokens, lambda j: name(indices[j])):
        i = indices[j]
        context, continuation = pairs[i]
        values = logprobs.tolist()
        scores[i] = Score(
            logprob=math.fsum(values),
            token_logprobs=values,
            tokens=list(continuation),
            is_greedy=bool(np.array_equal(greedy, continuation)),
            truncated=len(context) + len(continuation) > n_ctx + 1,
        )
        done(1)
    return [scores[i] for i in range(len(pairs))]


def _check(model: Model, index: int, pair: TokenPair) -> TokenPair:
    try:
        context, continuation = (list(ids) for ids in pair)
    except (TypeError, ValueError):
        raise ArgumentError(f"pair {index} is {pair!r:.80}; give (context ids, continuation ids)") from None
    return checked_ids(model, context, f"pair {index}"), checked_ids(model, continuation, f"pair {index}")


def checked_ids(model: Model, ids: Sequence[int], name: str) -> list[int]:
    """Plain integers inside the vocabulary, or ArgumentError that begins with ``name``."""
    with naming(name):
        model.tokenizer.check_ids(ids)
    return [int(i) for i in ids]
