"""Checking what a caller of generation gave; every message names the argument."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minfer_jax.arguments import check_integer, check_iterable
from minfer_jax.errors import ArgumentError, ContextLengthError, naming
from minfer_jax.model import Model

LogitsProcessor = Callable[[list[int], np.ndarray], np.ndarray]
"""(ids of prompt and output so far, logits float32 [vocab]) -> logits float32 [vocab] to draw the next token from."""


def prompt_ids(model: Model, prompt: str | Sequence[int], parse_special: bool) -> list[int]:
    """Token ids of a prompt given as text or as ids, at least one."""
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, parse_special=parse_special) or [tokenizer.start_id()]
    ids = tokenizer.check_ids(prompt)
    if not ids:
        raise ArgumentError("no tokens; give at least one id")
    return ids


def check_stop_ids(model: Model, stop_ids: Iterable[int] | None) -> list[int]:
    """Ids that end a text, the model's own for None."""
    if stop_ids is None:
        return sorted(model.tokenizer.eog_ids)
    with naming("stop_ids"):
        return model.tokenizer.check_ids(list(stop_ids) if isinstance(stop_ids, set | frozenset) else stop_ids)


def check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """A tuple of stop strings from one or many."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(s, str) for s in stops):
        raise ArgumentError(f"stop is {stop!r}; give a string or a list of strings")
    return tuple(stops)


def check_processors(processors: Iterable[LogitsProcessor]) -> tuple[LogitsProcessor, ...]:
    """The same as a tuple."""
    checked = tuple(check_iterable("logits_processors", processors))
    if not all(map(callable, checked)):
        raise ArgumentError(f"logits_processors is {processors!r:.80}; give a list of functions (ids, logits)")
    return checked


def process_logits(processors: Sequence[LogitsProcessor], ids: list[int], logits: np.ndarray) -> np.ndarray:
    """Logits [vocab] after all processors, each of which gets a list and an array of its own."""
    for i, processor in enumerate(processors):
        returned = processor(list(ids), logits.copy())
        out = np.asarray(returned)
        if out.shape != logits.shape or not np.issubdtype(out.dtype, np.floating):
            got = f"{returned!r:.40}" if out.ndim == 0 else f"{out.dtype} {out.shape}"
            raise ArgumentError(f"logits_processors[{i}] returned {got}; return float32 {logits.shape}")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and that is refused later
            logits = out.astype(np.float32)
    return logits


def check_max_tokens(value: int | None) -> int | None:
    """The number, or None for no limit but the context."""
    if value is None:
        return None
    limit = check_integer("max_tokens", value, -1)
    return None if limit == -1 else limit


def room(n_prompt: int, limit: int | None, n_ctx: int) -> int:
    """How many tokens a prompt may produce."""
    if n_prompt >= n_ctx:
        raise ContextLengthError(
            f"{n_prompt} tokens in a context window of {n_ctx} leave no room for output; shorten the prompt or load "
            "the model with a larger n_ctx"
        )
    free = n_ctx - n_prompt
    return free if limit is None else min(limit, free)
