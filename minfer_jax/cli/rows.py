"""Rows of JSON lines to score: reading them, and scoring many so that a bad one harms no other."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer_jax.errors import ArgumentError, TokenizerError
from minfer_jax.model import Model
from minfer_jax.scoring import multiple_choice_batch, score, score_texts
from minfer_jax.scoring.results import MultipleChoice, Score, TextScore

_FORMS = "give context and continuation, context and choices, or text"

Result = Score | MultipleChoice | TextScore


@dataclass(frozen=True)
class Row:
    """A request. line: its number in the input, from 1. kind: "pair", "choices" or "text". value: what the scoring
    function of that kind takes. id: the row's own, handed through."""

    line: int
    kind: str
    value: Any
    id: Any = None


@dataclass(frozen=True)
class BadRow:
    """A line that cannot be scored, and why."""

    line: int
    reason: str
    id: Any = None


@contextmanager
def open_lines(source: str) -> Iterator[Iterable[bytes]]:
    """The lines of a file, or of stdin for "-"."""
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(source).open("rb")
    except OSError as error:
        raise ArgumentError(f"{source}: cannot be read: {os.strerror(error.errno or 0)}") from error
    with file:
        yield file


def count_rows(source: str) -> int | None:
    """Number of rows in a file, for a progress bar; None for stdin and pipes."""
    if source == "-" or not Path(source).is_file():
        return None
    with open_lines(source) as lines:
        return sum(1 for line in lines if line.strip())


def read_rows(lines: Iterable[bytes]) -> Iterator[Row | BadRow]:
    """Rows one by one; empty lines count in the numbering only."""
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield _parse(number, line)


def _parse(number: int, line: bytes) -> Row | BadRow:
    try:
        fields = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return BadRow(number, f"byte {error.start} is not UTF-8")
    except (json.JSONDecodeError, RecursionError) as error:
        return BadRow(number, f"not JSON: {error}")
    except ValueError as error:  # an integer of thousands of digits
        return BadRow(number, f"not JSON that can be read: {error}")
    if not isinstance(fields, dict):
        return BadRow(number, f"not a JSON object: {_FORMS}")
    given = fields.keys() & {"context", "continuation", "choices", "text"}
    if given not in ({"context", "continuation"}, {"context", "choices"}, {"text"}):
        return BadRow(number, f"has {' and '.join(sorted(given)) or 'none of the fields'}: {_FORMS}")
    for name in sorted(given - {"choices"}):
        if not isinstance(fields[name], str):
            return BadRow(number, f"{name} is {_shown(fields[name])}; give a text")
    if "text" in given:
        return Row(number, "text", fields["text"], fields.get("id"))
    if "continuation" in given:
        return Row(number, "pair", (fields["context"], fields["continuation"]), fields.get("id"))
    choices = fields["choices"]
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        return BadRow(number, f"choices is {_shown(choices)}; give a list of texts")
    return Row(number, "choices", (fields["context"], choices), fields.get("id"))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def score_rows(model: Model, rows: Sequence[Row], parse_special: bool = False) -> Iterator[Result | BadRow]:
    """The result of each row, in order. Errors that are not a single row's fault are raised."""
    calls: dict[str, Callable[[list[Any]], Sequence[Result]]] = {
        "pair": lambda values: score(model, values, parse_special=parse_special, progress=False),
        "choices": lambda values: multiple_choice_batch(model, values, parse_special=parse_special, progress=False),
        "text": lambda values: score_texts(model, values, parse_special=parse_special, progress=False),
    }
    results: dict[int, Result | BadRow] = {}
    for kind, call in calls.items():
        mine = [row for row in rows if row.kind == kind]
        results |= zip((row.line for row in mine), _score_or_refuse(mine, call), strict=True)
    return (results[row.line] for row in rows)


def _score_or_refuse(rows: list[Row], call: Callable[[list[Any]], Sequence[Result]]) -> Iterator[Result | BadRow]:
    """All rows in one call; when one is refused, those before it and those behind it."""
    while rows:
        try:
            results = call([row.value for row in rows])
        except (ArgumentError, TokenizerError) as error:
            if error.index is None:  # no row's fault
                raise
            place, reason = error.index, error.reason
        else:
            yield from results
            return
        yield from _score_or_refuse(rows[:place], call)
        yield BadRow(rows[place].line, reason, rows[place].id)
        rows = rows[place + 1 :]
