"""What names a compiled program: the graph that was traced, and the shape it was traced at."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import jax

from minfer_jax.models.config import Config
from minfer_jax.models.params import Params
from minfer_jax.runtime.readback import Route

_TRACED_SETTINGS = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}

Kind = Literal["prefill", "decode", "score"]
Sampling = Literal["", "greedy", "draw"]


@dataclass(frozen=True)
class Shape:
    """The sizes of one program call.

    kind: "prefill" (tokens through the model, with or without a cache), "decode" (one token a row, ``steps`` times) or
    "score" (log-probabilities of targets). batch, tokens: rows and tokens per row. n_out: rows that go through the
    last FFN and the head; batch * tokens is all. cache_length: positions of the KV cache, 0 without one. sampling: of
    many steps, "" where one program serves every sampler. cache_dtype: of the KV cache. readback: how the results
    come to the host; "plain": they stay on the device, to be read from there.
    """

    kind: Kind
    batch: int
    tokens: int
    n_out: int
    cache_length: int = 0
    steps: int = 1
    sampling: Sampling = ""
    cache_dtype: str = "float32"
    readback: Route = "plain"

    @property
    def slots(self) -> int:
        """Places for a token: batch * tokens."""
        return self.batch * self.tokens

    def __str__(self) -> str:
        sizes = f"{self.kind} b{self.batch} t{self.tokens} o{self.n_out} c{self.cache_length}"
        steps = f"x{self.steps}" if self.steps > 1 else ""
        dtype = "" if self.cache_dtype == "float32" else self.cache_dtype
        readback = "" if self.readback == "plain" else self.readback
        return " ".join(filter(None, (sizes, steps, self.sampling, dtype, readback)))


Key = tuple[str, Shape]
"""A graph's uid and a shape."""


def key_name(key: Key) -> str:
    """How a key is shown."""
    return f"{key[0]}/{key[1]}"


def traced_settings() -> tuple:
    """What JAX is set to here and now, where it decides what a trace becomes."""
    return tuple(getattr(jax.config, name) for name in _TRACED_SETTINGS)


@contextmanager
def set_to(settings: tuple) -> Iterator[None]:
    """JAX as it was when ``settings`` were taken, in whatever thread, and with jit on: switched off for debugging it is
    for a caller's own functions."""
    with ExitStack() as stack:
        for enter, value in zip(_TRACED_SETTINGS.values(), settings, strict=True):
            stack.enter_context(enter(value))
        stack.enter_context(jax.disable_jit(False))
        yield


def graph_uid(config: Config, params: Params, settings: tuple) -> str:
    """12 hex digits that differ wherever a program would: config, weight formats, implementation, dtypes, shapes and
    devices, the versions of the package and of JAX, and what JAX is set to (``traced_settings``)."""
    from minfer_jax import __version__

    leaves, tree = jax.tree.flatten(params)
    weights = tuple((leaf.shape, leaf.dtype, placement(leaf)) for leaf in leaves)
    return _digest(config, tree, weights, __version__, jax.__version__, jax.default_backend(), settings)


def placement(x: Any) -> Any:
    """The sharding of an array that has been put somewhere, None for one that may be anywhere."""
    return x.sharding if isinstance(x, jax.Array) and x.committed else None


@lru_cache(256)  # a plain model asks at every call
def _digest(*graph: object) -> str:
    return hashlib.sha256(repr(graph).encode()).hexdigest()[:12]
