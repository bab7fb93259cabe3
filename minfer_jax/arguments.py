"""Checks that arguments of many functions share."""

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from minfer_jax.errors import ArgumentError


def check_iterable(name: str, value: Any) -> Iterator[Any]:
    """An iterator over many inputs; one string is not many, and a set has no order.

    Raises ArgumentError naming the argument.
    """
    try:
        if not isinstance(value, str | bytes | set | frozenset):
            return iter(value)
    except TypeError:  # asked, not told by its type: an array of no dimension says that it can be iterated
        pass
    raise ArgumentError(f"{name} is {value!r:.80}; give a list of them, or another ordered iterable")


def check_integer(name: str, value: Any, at_least: int) -> int:
    """The argument as a plain int; Python's and numpy's integers count, booleans and floats do not.

    Raises ArgumentError naming the argument.
    """
    try:
        number = at_least - 1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = at_least - 1
    if number < at_least:
        raise ArgumentError(f"{name} is {value!r}; give an integer of at least {at_least}")
    return number
