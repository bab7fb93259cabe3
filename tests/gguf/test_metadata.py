"""Getters of metadata: the value, the default, or an error that names file, key, what is there and what is needed."""

import numpy as np
import pytest

from minfer_jax.errors import GGUFError
from minfer_jax.gguf import Metadata

VALUES = {
    "int": 3,
    "float": 0.5,
    "nan": float("nan"),
    "bool": True,
    "text": "été",
    "texts": ["a", ""],
    "ints": np.array([1, 2], np.int32),
    "floats": np.array([1.5], np.float32),
    "bools": np.array([True]),
}
GETTERS = {
    "integer": ["int"],
    "number": ["int", "float"],
    "boolean": ["bool"],
    "string": ["text"],
    "strings": ["texts"],
    "numbers": ["ints", "floats"],
}
metadata = Metadata(VALUES, "model.gguf")


@pytest.mark.parametrize("getter", GETTERS)
@pytest.mark.parametrize("key", VALUES)
def test_getter_returns_its_types_and_refuses_the_others(getter: str, key: str) -> None:
    get = getattr(metadata, getter)
    if key in GETTERS[getter]:
        assert np.array_equal(get(key), VALUES[key]) and np.array_equal(get(key, None), VALUES[key])
    else:
        # A default is for a key that is missing, not for one that holds something else.
        for arguments in ((key,), (key, None)):
            with pytest.raises(GGUFError, match=rf"^model\.gguf: metadata key '{key}' holds .*; an? .* is needed"):
                get(*arguments)


@pytest.mark.parametrize("getter", GETTERS)
def test_missing_key_gives_the_default_or_an_error(getter: str) -> None:
    default = object()
    assert getattr(metadata, getter)("absent", default) is default
    assert getattr(metadata, getter)("absent", None) is None
    with pytest.raises(GGUFError, match=r"^model\.gguf: metadata key 'absent' is missing; an? .* is needed"):
        getattr(metadata, getter)("absent")


def test_number_is_a_float() -> None:
    assert type(metadata.number("int")) is float


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("int", "the int 3;"),
        ("bool", "the bool True;"),
        ("text", "the string 'été';"),
        ("texts", "an array of 2 strings;"),
        ("floats", "an array of 1 numbers;"),
        ("bools", "an array of 1 booleans;"),
    ],
)
def test_error_says_what_was_found(key: str, said: str) -> None:
    with pytest.raises(GGUFError, match=said):
        metadata.strings(key) if key != "texts" else metadata.integer(key)


def test_a_mapping_that_cannot_be_changed_from_outside() -> None:
    values = {"b": 1, "a": 2}
    mapping = Metadata(values)
    values["c"] = 3
    assert dict(mapping) == {"b": 1, "a": 2} and list(mapping) == ["b", "a"]
    assert mapping.get("c") is None and "a" in mapping
    with pytest.raises(KeyError):
        mapping["c"]
