"""Compiled modules as text: one by hand, and those of functions and of the package's programs.

The files hlo_h200_*.txt in tests/data are modules that jax 0.11.2 compiled for an H200.
"""

import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import decode, jitted
from minfer_jax.runtime.graph_dot import dot
from minfer_jax.sampling import Sampler

DATA = Path(__file__).parents[1] / "data"
X = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def text_of(function: Callable, *args) -> str:
    return jax.jit(function).lower(*args).compile().as_text()


def scan(x: jax.Array, length: int, extra: Callable = lambda x: x) -> jax.Array:
    return jax.lax.scan(lambda x, _: (extra(jnp.tanh(x @ x)), None), x, length=length)[0]


MODULE = r"""
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

FileNames
1 "a) {"

%fused (p: f32[8], q: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  ROOT %add.0 = f32[8]{0:T(256)} add(%p, %q)
}

%body.1 (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0:T(256)S(5)}, /*index=2*/((f32[2,2]{1,0}), u32[])) parameter(0)
  ROOT %fusion.1 = f32[8]{0} fusion(%t, %t), kind=kLoop, calls=%fused, metadata={op_name="a=b/(x, calls=%no)\"/{c}"}
}

%host (p.1: f32[8]) -> f32[8] {
  ROOT %p.1 = f32[8]{0} parameter(0)
}, execution_thread="host"

ENTRY %main.2 (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0), sharding={replicated}
  %while.1 = (s32[], f32[8]{0}) while(%x), condition=%c, body=%body.1, backend_config={"known_trip_count":{"n":"12"}}

  %odd = something entirely new
  and a line that continues it
  %c.1 = f32[8]{0} conditional(%x, %x, %x), branch_computations={%body.1, %fused}, control-predecessors={%x}
  ROOT %call.1 = f32[8]{0} custom-call(f32[8]{0} %x, %odd), custom_call_target="a\"b", metadata={op_name="f/g"}
}
"""


def real_program(name: str, model: Model) -> str:
    """The text of a program of the package for two rows."""
    config, vocab = model.config, model.config.vocab_size
    ids = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    rows = jax.ShapeDtypeStruct((16,), jnp.int32)
    cache = jax.eval_shape(lambda: init_cache(config, 2, 16))
    match name.split():
        case ["prefill", route]:
            tail = jax.ShapeDtypeStruct((2,), jnp.int32)
            lowered = jitted.forward_rows.lower(
                model.params, ids, ids, cache, tail, config=config, destination=(route, 0)
            )
        case ["score"]:
            lowered = jitted.score_rows.lower(model.params, ids, ids, None, rows, config=config)
        case ["decode", early_exit]:
            state = decode.start_state([[1], [2]], [4, 4], 2, vocab)
            settings, ends, flags = Sampler().settings(vocab, 0), np.zeros(vocab, bool), np.zeros(2, bool)
            args = np.int32(4), cache, state, settings, ends, flags
            lowered = decode.decode.lower(model.params, *args, config=config, steps=8, early_exit=early_exit == "early")
        case _:
            raise AssertionError(name)
    return lowered.compile().as_text()


_DOT = re.compile(
    r"""\s*(?: subgraph\ (?P<cluster>cluster_\d+)\ \{ | (?P<close>\}) | compound=true | node\ \[[^\]]*\]
    | label=(?P<title>"(?:[^"\\]|\\.)*")
    | (?P<node>n\d+_\d+)\ \[label=(?P<label>"(?:[^"\\]|\\.)*"),\ (?P<style>[^\]]*)\]
    | (?P<tail>n\d+_\d+)\ ->\ (?P<head>n\d+_\d+)(?:\ \[style=dashed,\ lhead=(?P<into>cluster_\d+)\])? )\n""",
    re.VERBOSE,
)


def graph(text: str) -> tuple[dict[str, tuple[str, str]], list[tuple[str, str]], list[str]]:
    """(nodes: label and style, edges, clusters) of the DOT of a module, every character of which is accounted for."""
    source = dot(text)
    assert source.startswith("digraph {\n")
    at, open_clusters = len("digraph {\n"), 1
    nodes, edges, clusters, entered = {}, [], [], []
    while at < len(source):
        found = _DOT.match(source, at)
        assert found and open_clusters, source[at : at + 200]
        at = found.end()
        open_clusters += bool(found["cluster"]) - bool(found["close"])
        if found["node"]:
            assert found["node"] not in nodes
            nodes[found["node"]] = found["label"], found["style"]
        if found["tail"]:
            edges.append((found["tail"], found["head"]))
        clusters += [found["cluster"]] if found["cluster"] else []
        entered += [found["into"]] if found["into"] else []
    assert open_clusters == 0
    assert {end for edge in edges for end in edge} <= nodes.keys() and set(entered) <= set(clusters)
    return nodes, edges, clusters
