"""The weights as pytrees.

Layers whose tensors agree in shape (with "xla" also in type) are stacked, run by run, so that a program traces each run
once and takes few arguments. See ``weights.py`` for how they are gathered from a file.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import jax

from minfer_jax.quant import QuantTensor, Weight
from minfer_jax.quant.fragments import Fragments
from minfer_jax.quant.tensor import layer_of

_STACKS = Weight | Fragments


@dataclass(frozen=True)
class Layer:
    """One decoder layer, or a run of equal ones stacked on a leading axis. None: the model has no such tensor.

    qkv, gate_up: those matrices (and biases) as one, for GPU kernels.
    """

    attn_norm: jax.Array
    q: Weight
    k: Weight
    v: Weight
    o: Weight
    ffn_norm: jax.Array
    gate: Weight
    up: Weight
    down: Weight
    q_bias: jax.Array | None = None
    k_bias: jax.Array | None = None
    v_bias: jax.Array | None = None
    o_bias: jax.Array | None = None
    q_norm: jax.Array | None = None
    k_norm: jax.Array | None = None
    attn_post_norm: jax.Array | None = None
    gate_bias: jax.Array | None = None
    up_bias: jax.Array | None = None
    down_bias: jax.Array | None = None
    ffn_post_norm: jax.Array | None = None
    qkv: Fragments | None = None
    gate_up: Fragments | None = None

    def at(self, i: int | jax.Array) -> "Layer":
        """Layer i >= 0 of a run; i may be traced."""

        def pick(stacked: Any) -> Any:
            return stacked.layer(i) if isinstance(stacked, _STACKS) else layer_of(stacked, i)

        return jax.tree.map(pick, self, is_leaf=lambda x: isinstance(x, _STACKS))


@dataclass(frozen=True)
class Params:
    """All weights of a model, a pytree, as ``load`` makes it.

    embedding: [vocab, D]. runs: stacked layers in order. final_norm: [D]. head: [vocab, D], None when tied.
    rope_freqs: [tables, dim / 2].
    """

    embedding: QuantTensor
    runs: tuple[Layer, ...]
    final_norm: jax.Array
    head: QuantTensor | None
    rope_freqs: jax.Array

    def with_exact_products(self, exact: bool) -> "Params":
        """The same weights, multiplied with inputs in float32 or in 16-bit integers: see ``QuantTensor.exact``."""

        def mark(leaf: Any) -> Any:
            return replace(leaf, exact=exact) if isinstance(leaf, QuantTensor) else leaf

        return jax.tree.map(mark, self, is_leaf=lambda x: isinstance(x, QuantTensor))


for _cls in (Layer, Params):
    jax.tree_util.register_dataclass(_cls, [f.name for f in fields(_cls)], [])
