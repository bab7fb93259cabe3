"""What names a compiled program: the graph that was traced, and the shape it was traced at."""

import hashlib
from dataclasses import dataclass
from typing import Literal

import jax

from minfer_jax.models.config import Config
from minfer_jax.models.params import Params

_TRACED_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision")

Kind = Literal["prefill", "decode", "score"]


@dataclass(frozen=True)
class Shape:
    """The sizes of one program call.

    kind: "prefill" (tokens through the model, with or without a cache), "decode" (one token a row, ``steps`` times) or
    "score" (log-probabilities of targets). batch, tokens: rows and tokens per row. n_out: rows that go through the
    last FFN and the head; batch * tokens is all. cache_length: positions of the KV cache, 0 without one. cache_dtype:
    of the KV cache. readback: how the logits come to the host, "" where they stay on the device.
    """

    kind: Kind
    batch: int
    tokens: int
    n_out: int
    cache_length: int = 0
    steps: int = 1
    cache_dtype: str = "float32"
    readback: str = ""

    @property
    def slots(self) -> int:
        """Places for a token: batch * tokens."""
        return self.batch * self.tokens

    def __str__(self) -> str:
        sizes = f"{self.kind} b{self.batch} t{self.tokens} o{self.n_out} c{self.cache_length}"
        steps = f"x{self.steps}" if self.steps > 1 else ""
        dtype = "" if self.cache_dtype == "float32" else self.cache_dtype
        return " ".join(filter(None, (sizes, steps, dtype, self.readback)))


def graph_uid(config: Config, params: Params) -> str:
    """12 hex digits that differ wherever a trace would: config, weight formats, implementation, dtypes and shapes,
    the versions of the package and of JAX, and what JAX is set to."""
    from minfer_jax import __version__

    leaves, tree = jax.tree.flatten(params)
    weights = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
    settings = [jax.default_backend(), *(getattr(jax.config, name) for name in _TRACED_SETTINGS)]
    graph = (config, tree, weights, __version__, jax.__version__, settings)
    return hashlib.sha256(repr(graph).encode()).hexdigest()[:12]
