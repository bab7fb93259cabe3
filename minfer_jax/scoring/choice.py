"""Multiple choice: which continuation the model finds likeliest."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.scoring.pairs import score, split_pair
from minfer_jax.scoring.results import MultipleChoice, Score


def multiple_choice(
    model: Model, context: str, choices: Sequence[str], *, parse_special: bool = False
) -> MultipleChoice:
    """Score every choice as the continuation of ``context`` and rank them by sum, per token and per byte.

    A choice wants its leading space (" Paris") or a context that ends in one. Arguments and errors as in ``score``;
    besides, ArgumentError when a choice has no token of its own to score, because it is empty or its first token
    swallows the end of the context: its sum of 0.0 would always win.
    """
    return multiple_choice_batch(model, [(context, choices)], parse_special=parse_special, progress=False)[0]


def multiple_choice_batch(
    model: Model,
    questions: Iterable[tuple[str, Sequence[str]]],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[MultipleChoice]:
    """As :func:`multiple_choice` for many (context, choices), scored together."""
    checked = [_check(i, question) for i, question in enumerate(questions)]
    pairs = [(context, choice) for context, choices in checked for choice in choices]
    scores = iter(score(model, pairs, parse_special=parse_special, batch_tokens=batch_tokens, progress=progress))
    return [_rank(i, *question, scores) for i, question in enumerate(checked)]


def _check(index: int, question: tuple[str, Sequence[str]]) -> tuple[str, list[str]]:
    try:
        context, choices = question
    except (TypeError, ValueError):
        raise ArgumentError(f"question {index} is {question!r:.80}; give (context, choices)") from None
    if not isinstance(context, str):
        raise ArgumentError(f"question {index}: the context is {context!r:.80}; give a text")
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices) or not len(choices):
        raise ArgumentError(f"question {index}: choices is {choices!r:.80}; give a list of at least one text")
    return context, list(choices)


def _rank(index: int, context: str, choices: list[str], scores: Iterator[Score]) -> MultipleChoice:
    mine = list(islice(scores, len(choices)))
    for choice, result in zip(choices, mine, strict=True):
        if result.empty:
            why = "its first token swallows the end of the context" if result.merged else "it is empty"
            raise ArgumentError(f"question {index}: choice {choice!r:.80} has no token to score: {why}")
    sums = [result.logprob for result in mine]
    per_token = [result.logprob / len(result.tokens) for result in mine]
    per_byte = [
        result.logprob / len(split_pair(context, choice)[1].encode())
        for choice, result in zip(choices, mine, strict=True)
    ]
    best = [int(np.argmax(rule)) for rule in (sums, per_token, per_byte)]
    return MultipleChoice(context, choices, mine, sums, per_token, per_byte, *best)
