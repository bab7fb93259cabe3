"""Plain text: one line for whatever a string holds, aligned tables."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def printable(text: str) -> str:
    """The text with line ends, terminal commands and the like written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str) -> str:
    """The text between quotes, so that its spaces show."""
    return f'"{printable(text)}"'


def cell(value: Any) -> str:
    """A value as tables show it: "-" for None, "yes" and "no", four decimals, a string on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    return printable(str(value))


def table_lines(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> list[str]:
    """Aligned columns: numbers to the right, the rest to the left, no line longer than its content."""
    values = [list(row) for row in rows]
    cells = [[cell(value) for value in row] for row in values]
    lines = [list(header), *cells] if header else cells
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    numeric = [all(isinstance(row[i], int | float) for row in values) for i in range(len(widths))]
    return [
        "  ".join(
            " " * (width - _width(cell)) + cell if right else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]


def fact_texts(facts: Mapping[str, Any], percent: Sequence[str] = ()) -> dict[str, str]:
    """Facts by name as texts by readable name. A standard error, X_error (of the first, standard_error), goes behind
    its value; None is left out. percent: names of those that get a sign."""
    first = next(iter(facts))
    errors = {name: f"{name}_error" for name in facts} | {first: "standard_error"}
    texts = {}
    for name, value in facts.items():
        if value is None or name in errors.values():
            continue
        text = _fact(value)
        if (error := facts.get(errors[name])) is not None:
            text += f" +/- {_fact(error)}"
        texts[name.replace("_", " ")] = text + " %" * (name in percent)
    return texts


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4g}"
    return str(value)


def tokens_line(texts: Sequence[str], logprobs: Sequence[float | None], most: int = 8) -> str:
    """The first tokens with their log-probabilities, and how many follow: ``" Paris" -0.26, "." -1.10, 5 more``."""
    shown = [
        f"{quoted(text)} {'-' if value is None else f'{value:.2f}'}"
        for text, value in zip(texts[:most], logprobs, strict=False)
    ]
    rest = len(texts) - len(shown)
    return ", ".join([*shown, f"{rest} more"] if rest else shown)


def counted(n: int, what: str) -> str:
    """``1 token``, ``2 tokens``, ``1,234 tokens``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _width(text: str) -> int:
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)
