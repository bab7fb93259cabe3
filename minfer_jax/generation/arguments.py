"""Checking what a caller of generation gave; every message names the argument."""

import operator
from collections.abc import Iterable, Sequence

import numpy as np

from minfer_jax.errors import ArgumentError, ContextLengthError
from minfer_jax.model import Model


def prompt_ids(model: Model, prompt: str | Sequence[int]) -> list[int]:
    """Token ids of a prompt given as text or as ids, at least one."""
    if not isinstance(prompt, str):
        ids = check_ids(model, "prompt", prompt)
        if not ids:
            raise ArgumentError("prompt has no tokens; give at least one id")
        return ids
    ids = model.tokenizer.encode(prompt)
    if not ids and model.tokenizer.bos_id is not None:
        ids = [model.tokenizer.bos_id]
    if not ids:
        raise ArgumentError("prompt is empty and the model has no BOS token to start from; give some text")
    return ids


def check_ids(model: Model, name: str, ids: Iterable[int]) -> list[int]:
    """A list of token ids that all lie in the vocabulary."""
    try:
        numbers = [operator.index(i) for i in ids]
    except TypeError:
        raise ArgumentError(f"{name} must be text or a list of token ids, not {ids!r:.60}") from None
    model.tokenizer.check_ids(numbers)
    return numbers


def check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """A tuple of stop strings from one or many."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) for s in stops):
        raise ArgumentError(f"stop is {stop!r}; give a string or a list of strings")
    return tuple(stops)


def check_max_tokens(value: int | None) -> int | None:
    """The number, or None for no limit but the context."""
    if value is None:
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < -1:
        raise ArgumentError(f"max_tokens is {value!r}; give an integer of at least 0, or None (or -1) for no limit")
    return None if value == -1 else int(value)


def room(n_prompt: int, limit: int | None, n_ctx: int) -> int:
    """How many tokens a prompt may produce."""
    if n_prompt >= n_ctx:
        raise ContextLengthError(
            f"the prompt has {n_prompt} tokens and the context window {n_ctx}, which leaves no room for output; "
            "shorten the prompt or load the model with a larger n_ctx"
        )
    free = n_ctx - n_prompt
    return free if limit is None else min(limit, free)
