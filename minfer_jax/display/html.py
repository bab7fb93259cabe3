"""Small HTML for notebooks. Everything is escaped here; colours are translucent and text keeps the notebook's own
colour, so that it reads in light and dark themes."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from minfer_jax.display.text import cell, counted, printable

_FULL_RED = 10.0  # nats of surprise; what is less likely looks the same
_MOST_TOKENS = 500  # of a text that are shown
_MOST_NUMBERED = 100  # tokens that have their number below, and not only in the hint


def escape(text: str) -> str:
    """Text for HTML, attributes included: on one line, what does not print written as an escape."""
    return html.escape(printable(text))


def block(title: str, *parts: str, note: str = "") -> str:
    """A display: a bold title with a note beside it, and parts, which are HTML already."""
    head = f"<b>{escape(title)}</b>" + (f" <small>{escape(note)}</small>" if note else "")
    return f"<div>{head}{''.join(parts)}</div>"


def facts(values: Mapping[str, Any]) -> str:
    """A table of two columns, name and value; those that are None are left out."""
    left = ' style="text-align:left"'
    rows = (
        f"<tr><th{left}>{escape(name)}</th><td{left}>{escape(cell(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return f"<table>{''.join(rows)}</table>"


def table(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> str:
    """A table: numbers to the right, the rest to the left, strings between quotes kept as they are."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_td, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _td(value: Any) -> str:
    side = "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"
    return f'<td style="text-align:{side};white-space:pre">{escape(cell(value))}</td>'


def heat_map(tokens: Sequence[int], texts: Sequence[str], logprobs: Sequence[float | None]) -> str:
    """A text, each token the redder the less likely it was (10 nats and more look the same), with its log-probability
    below and, as a hint for the mouse, its id and probability.

    A line end is shown as an arrow and breaks the line. A long text is cut, and says so.
    """
    numbered = len(tokens) <= _MOST_NUMBERED
    cells = (_token(*token, numbered=numbered) for token in zip(tokens[:_MOST_TOKENS], texts, logprobs, strict=False))
    height = "2.4" if numbered else "1.6"
    rest = len(tokens) - _MOST_TOKENS
    more = f" <small>… {counted(rest, 'token')} more</small>" if rest > 0 else ""
    return f'<div style="white-space:pre-wrap;line-height:{height}">{"".join(cells)}{more}</div>'


def _token(token: int, text: str, logprob: float | None, *, numbered: bool) -> str:
    hint, below, style = f"id {token}", "–", ""
    if logprob is not None:
        hint += f", log-probability {logprob:.4f}, probability {math.exp(logprob):.3g}"
        below = f"{logprob:.2f}"
        style = f"background:rgba(230,60,40,{0.75 * min(max(-logprob, 0.0) / _FULL_RED, 1.0):.2f})"
    # Line breaks, and what a token has behind one, stand outside of it: a ruby does not break.
    first, *rest = text.split("\n")
    shown = escape(first) + "↵" * len(rest)
    behind = "".join(f"\n{escape(line)}" for line in rest)
    if not numbered:
        return f'<span style="{style}" title="{hint}">{shown}</span>{behind}'
    number = f'<rt style="font-size:65%;opacity:.8;padding:0 .3em">{below}</rt>'
    return f'<ruby style="{style};ruby-position:under" title="{hint}">{shown}{number}</ruby>{behind}'
