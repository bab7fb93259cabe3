"""Rows to score, from anywhere: which of their fields say what is scored."""

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from minfer_jax.errors import ArgumentError

_PARTS = {"pair": ("context", "continuation"), "choices": ("context", "choices"), "text": ("text",)}


@dataclass(frozen=True)
class Form:
    """What rows are made of. kind: "pair", "choices" or "text". fields: the name of a field by what it holds."""

    kind: str
    fields: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """Of the fields."""
        return list(self.fields.values())


@dataclass(frozen=True)
class Columns:
    """Names of the fields of a row that hold what is scored, and of its id, which is handed through ("id" where there
    is one, unless named).

    What is scored is a continuation after a context, choices (a list of texts) after a context, or a text. Without
    names a row has the fields of one of these, called as here. With names it has the fields named, and whatever else it
    holds does not count; a context need not be named when it is called so.

    Raises ArgumentError when the names are not those of one of the three.
    """

    context: str | None = None
    continuation: str | None = None
    choices: str | None = None
    text: str | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        for part, name in asdict(self).items():
            if name is not None and (not isinstance(name, str) or not name):
                raise ArgumentError(f"the column of {part} is {name!r:.80}; give its name")
        self.forms()

    @property
    def id_name(self) -> str:
        """The field of the id."""
        return self.id or "id"

    def forms(self) -> list[Form]:
        """The forms that rows may have: all three, or the one whose fields are named."""
        return _forms(self)


@cache
def _forms(columns: Columns) -> list[Form]:
    named = {part: name for part, name in asdict(columns).items() if name is not None and part != "id"}
    if not named:
        return [Form(kind, {part: part for part in parts}) for kind, parts in _PARTS.items()]
    for kind, parts in _PARTS.items():
        if set(parts) - {"context"} <= named.keys() <= set(parts):
            return [Form(kind, {part: named.get(part, part) for part in parts})]
    raise ArgumentError(f"columns are named for {' and '.join(named)}; name those of {_listed(_PARTS.values())}")


@dataclass(frozen=True)
class Row:
    """A request. number: of the row in its input, from 1. values: what the fields of its form hold, in their order."""

    number: int
    kind: str
    values: tuple[Any, ...]
    id: Any = None


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be scored, and why."""

    number: int
    reason: str
    id: Any = None


def as_row(number: int, fields: Mapping[str, Any], columns: Columns, kind: str | None = None) -> Row | BadRow:
    """A row in the one form that its fields have. kind: of the form that it must have; None: any."""
    row_id = fields.get(columns.id_name)
    form = form_of(fields, columns.forms())
    if form is None or kind not in (None, form.kind):
        return BadRow(number, why_no_form(fields, columns.forms(), kind), row_id)
    for part, name in form.fields.items():
        value = fields[name]
        if part == "choices":
            if not isinstance(value, list) or not value or not all(isinstance(choice, str) for choice in value):
                return BadRow(number, f"{name} is {_shown(value)}; give a list of texts", row_id)
        elif not isinstance(value, str):
            return BadRow(number, f"{name} is {_shown(value)}; give a text", row_id)
    return Row(number, form.kind, tuple(fields[name] for name in form.names), row_id)


def form_of(names: Container[str], forms: Sequence[Form]) -> Form | None:
    """The form whose fields, and no other form's, are among the names."""
    given = {name for form in forms for name in form.names if name in names}
    return next((form for form in forms if set(form.names) == given), None)


def why_no_form(names: Iterable[str], forms: Sequence[Form], kind: str | None = None) -> str:
    """What is wrong with a row, or a table, that has none of the forms, or not that of a kind, and what to give."""
    found = ", ".join(list(names)[:10]) or "no fields"
    wanted = _listed(form.names for form in forms if kind in (None, form.kind))
    return f"has {found}; give {wanted}{' (or name the columns)' if kind is None else ''}"


def _listed(alternatives: Iterable[Iterable[str]]) -> str:
    """ "context and continuation, or context and choices, or text"."""
    return ", or ".join(" and ".join(names) for names in alternatives)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
