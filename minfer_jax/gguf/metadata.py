"""The metadata of a model as a read-only mapping, with getters that check the type of what they return."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minfer_jax.errors import GGUFError
from minfer_jax.gguf.cursor import shown

REQUIRED: Any = object()
"""Default of every getter: the key must be present."""


class Metadata(Mapping[str, Any]):
    """Key-value pairs of a GGUF file, in file order.

    Values are int, float, bool or str; arrays are ``list[str]`` for strings and read-only 1-D ``np.ndarray``
    for numbers and booleans, in the width of the file. Lists are shared, not copied: do not change them.

    Every getter raises GGUFError, naming file and key, when a required key is missing or holds another type.

    Args:
        values: the pairs.
        source: the file's name in messages.
    """

    __slots__ = ("_values", "source")

    def __init__(self, values: Mapping[str, Any], source: str = "metadata") -> None:
        self._values = dict(values)
        self.source: str = source

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys of {self.source})"

    def integer(self, key: str, default: Any = REQUIRED) -> int:
        """Return an integer of any width."""
        return self._get(key, default, "an integer", lambda value: type(value) is int)

    def number(self, key: str, default: Any = REQUIRED) -> float:
        """Return a finite number, integer or float in the file, as float."""
        value = self._get(key, default, "a finite number", _is_finite)
        return float(value) if type(value) is int else value

    def boolean(self, key: str, default: Any = REQUIRED) -> bool:
        """Return a boolean."""
        return self._get(key, default, "a boolean", lambda value: isinstance(value, bool))

    def string(self, key: str, default: Any = REQUIRED) -> str:
        """Return a string."""
        return self._get(key, default, "a string", lambda value: isinstance(value, str))

    def strings(self, key: str, default: Any = REQUIRED) -> list[str]:
        """Return an array of strings."""
        return self._get(key, default, "an array of strings", lambda value: isinstance(value, list))

    def numbers(self, key: str, default: Any = REQUIRED) -> np.ndarray:
        """Return a 1-D array of integers or floats."""
        return self._get(key, default, "an array of numbers", _is_numeric)

    def _get(self, key: str, default: Any, expected: str, fits: Callable[[Any], bool]) -> Any:
        if key not in self._values:
            if default is REQUIRED:
                raise GGUFError(f"{self.source}: metadata key {key!r} is missing; {expected} is needed there")
            return default
        value = self._values[key]
        if not fits(value):
            raise GGUFError(
                f"{self.source}: metadata key {key!r} holds {_described(value)}; {expected} is needed there"
            )
        return value


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != np.bool_


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {'booleans' if value.dtype == np.bool_ else 'numbers'}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    if isinstance(value, str):
        return f"the string {shown(value, 40)}"
    return f"the {type(value).__name__} {value}"
