"""The one exception family of the package: every message is a line that names what is wrong and what to do."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Naming = Callable[[int], AbstractContextManager[None]]
"""For the place of an input in a list, a context that names the input in errors raised inside."""


class MinferError(Exception):
    """Base of every error the package raises on purpose; catch this to catch them all.

    index: place of the input at fault, from 0, where the caller gave a list of them; else None.
    reason: the message, without the words that name that input.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.index: int | None = None
        self.reason = message


class GGUFError(MinferError):
    """A GGUF file is not readable: cut off, corrupt, not GGUF, or a metadata key is missing or of the wrong type."""


class UnsupportedError(MinferError):
    """The file or request is sound, but names an architecture, quantisation type or implementation we lack."""


class TokenizerError(MinferError):
    """The vocabulary cannot be built, or a text cannot be encoded."""


class ChatTemplateError(MinferError):
    """The chat template is missing, broken, unsafe, or refuses the conversation in its own words."""


class ArgumentError(MinferError, ValueError):
    """A caller's argument is out of range or of the wrong type; the message names the argument."""


class ContextLengthError(ArgumentError):
    """The prompt does not fit the context window; the message gives both numbers."""


class NumericsError(MinferError, ArithmeticError):
    """A logit or log-probability is not finite; it is never returned as a number."""


@contextmanager
def naming(what: str, index: int | None = None) -> Iterator[None]:
    """Put the name of an input in front of an error of ours: "pair 3: ...", nested "question 3, choice 1: ..."."""
    try:
        yield
    except MinferError as error:
        name = what if index is None else f"{what} {index}"
        named = type(error)(f"{name}{': ' if error.index is None else ', '}{error}")
        if index is not None:
            named.index, named.reason = index, str(error)
        raise named from None


def unnamed(_: int) -> AbstractContextManager[None]:
    """The Naming of a single input, which needs no name."""
    return nullcontext()
