"""What all results have in common, and how they are shown: ``str`` for terminals, ``_repr_html_`` for notebooks."""

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from minfer_jax.display import html
from minfer_jax.display.text import fact_texts, table_lines, tokens_line

if TYPE_CHECKING:
    from minfer_jax.tokenizer import Tokenizer


class Record:
    """Base of the dataclasses that results are."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values, ready for JSON."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # pyright: ignore[reportArgumentType]

    def __init_subclass__(cls) -> None:
        # In every class, for IPython takes a dataclass's own __repr__ before anything that is inherited.
        cls._repr_pretty_ = _repr_pretty_  # pyright: ignore[reportAttributeAccessIssue]


def _repr_pretty_(record: Record, printer: Any, cycle: bool) -> None:
    """IPython's plain text, which notebooks store beside HTML."""
    printer.text(str(record))


class FactRecord(Record):
    """A result that is shown as a table of names and values."""

    def facts(self) -> dict[str, str]:
        """What there is to show, by name, errors behind their values."""
        return fact_texts(self.to_dict())

    def __str__(self) -> str:
        return "\n".join([type(self).__name__, *table_lines(self.facts().items())])

    def _repr_html_(self) -> str:
        return html.block(type(self).__name__, html.facts(self.facts()))


class TokenRecord(Record):
    """A result about tokens, one log-probability each, which are shown as text, the redder the less likely.

    For that it remembers a tokenizer, which is no field of it: not compared, not in ``to_dict``, and not pickled.
    """

    _tokenizer: ClassVar["Tokenizer | None"] = None

    def read_by(self, tokenizer: "Tokenizer") -> Self:
        """This result, which from now on knows the text of its tokens."""
        object.__setattr__(self, "_tokenizer", tokenizer)  # of a frozen dataclass
        return self

    @property
    def token_texts(self) -> list[str]:
        r"""The text of each token for display, bytes of incomplete characters as ``\xf0``; ``<17>`` for id 17 where
        the tokenizer is not known, because the result comes out of a pickle or was made by hand."""
        tokens: list[int] = getattr(self, "tokens")  # noqa: B009 (a field of every subclass)
        if self._tokenizer is None:
            return [f"<{token}>" for token in tokens]
        return [self._tokenizer.token_text(token) for token in tokens]

    def summary(self) -> str:
        """One line on the whole, without its tokens."""
        raise NotImplementedError

    def __str__(self) -> str:
        tokens = tokens_line(self.token_texts, getattr(self, "token_logprobs"))  # noqa: B009
        return f"{type(self).__name__}: {self.summary()}" + (f": {tokens}" if tokens else "")

    def _repr_html_(self) -> str:
        tokens, logprobs = getattr(self, "tokens"), getattr(self, "token_logprobs")  # noqa: B009
        tokens_shown = html.heat_map(tokens, self.token_texts, logprobs)
        return html.block(type(self).__name__, tokens_shown, note=self.summary())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_tokenizer"}


def _plain(value: Any) -> Any:
    """As dataclasses.asdict has it, which is slow for lists of many numbers."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and any(isinstance(item, Record | dict | list | tuple) for item in value):
        return [_plain(item) for item in value]
    return list(value) if isinstance(value, list | tuple) else value


def json_text(value: Any, encoding: str = "utf-8") -> str:
    """A value as JSON on one line, readable where the encoding has its characters, else in ASCII."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # a lone surrogate, too
        return json.dumps(value)
    return text
