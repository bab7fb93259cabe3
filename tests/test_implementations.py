"""What load() chooses on each device, and what it says of models that do not fit."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

import minfer_jax as mj
from minfer_jax import implementations
from minfer_jax.implementations import Numerics, check_room, choose

_PACKED = SimpleNamespace(type=SimpleNamespace(name="Q4_K"), data=SimpleNamespace(nbytes=39_000_000_000))
_PLAIN = SimpleNamespace(type=SimpleNamespace(name="F16"), data=SimpleNamespace(nbytes=1_000_000_000))
FILE: Any = SimpleNamespace(
    name="big.gguf", size=40_000_000_000, n_parameters=70_000_000_000, tensors={"a": _PACKED, "b": _PLAIN}
)


@pytest.mark.parametrize(
    ("backend", "kernels", "arguments", "wanted"),
    [
        ("cpu", True, (None, None, None), Numerics("ffi", "float32", False)),
        ("cpu", True, (None, None, "exact"), Numerics("ffi", "float32", True)),
        ("cpu", True, (None, "bfloat16", None), Numerics("dense", "bfloat16", False)),
        ("cpu", False, (None, None, None), Numerics("dense", "float32", False)),
        ("gpu", True, (None, None, None), Numerics("pallas", "float32", False)),
        ("gpu", True, (None, None, "exact"), Numerics("dense", "float32", True)),
        ("gpu", True, (None, "float32", None), Numerics("dense", "float32", False)),
        ("gpu", True, ("dense", None, None), Numerics("dense", "float32", False)),
        ("gpu", False, (None, None, None), Numerics("dense", "float16", False)),
        ("tpu", False, (None, None, None), Numerics("dense", "float32", False)),
    ],
)
def test_choices(monkeypatch, caplog, backend, kernels, arguments, wanted):
    """On a GPU that the kernels are not for, one line says so, once."""
    implementations._say_once.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(implementations, "library", lambda: object() if kernels else None)
    monkeypatch.setattr(implementations, "why_no_gpu_kernels", lambda: None if kernels else "a Tesla T4")
    assert choose(*arguments) == choose(*arguments) == wanted
    line = "no GPU kernels of this package here, weights are expanded to float16: a Tesla T4"
    assert [r.getMessage() for r in caplog.records] == ([line] if backend == "gpu" and not kernels else [])


@pytest.mark.parametrize(
    ("numerics", "gigabytes", "message"),
    [
        (Numerics("pallas", "float32", False), 179, None),
        (Numerics("pallas", "float32", False), 178, r"179.0 GB with pallas, .* 178.0 GB .*'xla' \(40.0 GB\)"),
        (Numerics("dense", "float32", False), 280, None),
        (Numerics("dense", "float16", False), 139, r"140.0 GB with dense float16, .*'xla' \(40.0 GB\)"),
        (Numerics("xla", "float32", False), 40, None),
        (Numerics("xla", "float32", False), 39, "40.0 GB with xla, .*; take a smaller file"),
        (Numerics("dense", "float32", False), None, None),
    ],
)
def test_room_on_the_device(numerics, gigabytes, message):
    limit = None if gigabytes is None else gigabytes * 1_000_000_000
    if message is None:
        check_room(FILE, numerics, limit)
    else:
        with pytest.raises(mj.UnsupportedError, match="^big.gguf: the weights take " + message):
            check_room(FILE, numerics, limit)
