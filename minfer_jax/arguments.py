"""Checks that arguments of many functions share."""

import operator
from typing import Any

import numpy as np

from minfer_jax.errors import ArgumentError


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
