"""Multiple choice: which continuation the model finds likeliest."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import numpy as np

from minfer_jax.arguments import check_iterable
from minfer_jax.errors import ArgumentError, Naming, naming, unnamed
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.pairs import EncodedPair, encode_scorable, score_encoded, split_pair, warn_of_merged
from minfer_jax.scoring.results import MultipleChoice, Score

Question = tuple[str, Iterable[str]]


def multiple_choice(
    model: Model,
    context: str,
    choices: Iterable[str],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> MultipleChoice:
    """Score every choice as the continuation of ``context`` and rank them by sum, per token and per byte.

    A choice wants its leading space (" Paris") or a context that ends in one. Arguments and errors as in ``score``,
    naming the choice; besides, ArgumentError when a choice has no token of its own to score, because it is empty or
    its first token swallows the end of the context: its sum of 0.0 would always win.
    """
    return _answer(model, [(context, choices)], unnamed, parse_special, batch_tokens, progress)[0]


def multiple_choice_batch(
    model: Model,
    questions: Iterable[Question],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[MultipleChoice]:
    """As :func:`multiple_choice` for many (context, choices), scored together. Errors name question and choice."""
    return _answer(model, questions, partial(naming, "question"), parse_special, batch_tokens, progress)


def _answer(
    model: Model,
    questions: Iterable[Question],
    where: Naming,
    parse_special: bool,
    batch_tokens: int | None,
    progress: bool | None,
) -> list[MultipleChoice]:
    checked: list[tuple[str, list[str]]] = []
    pairs: list[EncodedPair] = []
    owners: list[tuple[int, int]] = []
    for i, question in enumerate(check_iterable("questions", questions)):
        with where(i):
            context, choices = _check(question)
            pairs += encode_choices(model, context, choices, parse_special)
        owners += ((i, j) for j in range(len(choices)))
        checked.append((context, choices))

    @contextmanager
    def where_pair(index: int) -> Iterator[None]:
        i, j = owners[index]
        with where(i), naming("choice", j):
            yield

    with progress_bar("scoring", len(pairs), "choice", progress) as bar:
        scores = iter(score_encoded(model, pairs, batch_tokens, where_pair, bar.update))
    warn_of_merged(sum(pair.merged for pair in pairs), len(pairs))
    return [rank(context, choices, list(islice(scores, len(choices)))) for context, choices in checked]


def encode_choices(model: Model, context: str, choices: Sequence[str], parse_special: bool) -> list[EncodedPair]:
    """The ids of each choice after the context. Raises as :func:`encode_scorable`, naming the choice."""
    pairs = []
    for j, choice in enumerate(choices):
        with naming("choice", j):
            pairs.append(encode_scorable(model, context, choice, parse_special))
    return pairs


def _check(question: Question) -> tuple[str, list[str]]:
    try:
        context, choices = question
    except (TypeError, ValueError):
        raise ArgumentError(f"got {question!r:.80}; give (context, choices)") from None
    if not isinstance(context, str):
        raise ArgumentError(f"the context is {context!r:.80}; give a text")
    texts = list(choices) if isinstance(choices, Iterable) and not isinstance(choices, str) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"choices is {texts or choices!r:.80}; give a list of at least one text")
    return context, texts


def rank(context: str, choices: list[str], scores: list[Score]) -> MultipleChoice:
    """The scores of choices, compared by each rule."""
    sums = [score.logprob for score in scores]
    per_token = [score.logprob / len(score.tokens) for score in scores]
    per_byte = [
        score.logprob / len(split_pair(context, choice)[1].encode())
        for choice, score in zip(choices, scores, strict=True)
    ]
    best = [int(np.argmax(rule)) for rule in (sums, per_token, per_byte)]
    return MultipleChoice(context, choices, scores, sums, per_token, per_byte, *best)
