"""Compiled programs as text: what is read from it, host boundaries and launches."""

import importlib
import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.native import library
from minfer_jax.runtime import hlo
from minfer_jax.runtime.graph_dot import dot
from tests.runtime.modules import DATA, MODULE, X, graph, real_program, scan, text_of
from tests.traces import traced_anew

# -- the reader


def test_instructions_are_taken_apart() -> None:
    module = hlo.parse(MODULE)
    assert list(module.computations) == ["fused", "body.1", "host", "main.2"] and module.entry == "main.2"
    t, fusion = module.computations["body.1"].values()
    assert t.opcode == "parameter"
    assert t.shape == "(s32[], f32[8]{0:T(256)S(5)}, /*index=2*/((f32[2,2]{1,0}), u32[]))"
    assert fusion.operands == ("t", "t")
    assert fusion.called("calls") == ["fused"] and fusion.runs == {}
    assert fusion.attributes["op_name"] == 'a=b/(x, calls=%no)"/{c}'
    x, loop, odd, conditional, call = module.computations["main.2"].values()
    assert loop.trip_count == 12 and loop.runs == {"c": "condition", "body.1": "body"}
    assert (odd.name, odd.opcode, odd.operands) == ("odd", "", ())
    assert list(conditional.runs) == ["body.1", "fused"] and conditional.operands == ("x", "x", "x")
    assert call.operands == ("x", "odd") and call.attributes["custom_call_target"] == 'a"b'
    assert not x.works and not loop.works and fusion.works and odd.works and call.works


@pytest.mark.parametrize("text", ["", "module @jit_f {\n}", MODULE.replace("ENTRY ", "")])
def test_other_text_is_refused(text: str) -> None:
    """A count of something that is no module would pass every check."""
    for function in (hlo.splits, hlo.kernels, dot):
        with pytest.raises(ArgumentError, match="compiled.as_text"):
            function(text)


def test_damaged_text_never_stops_the_reader() -> None:
    rng = random.Random(0)
    text = (DATA / "hlo_h200_scan.txt").read_text()
    read = 0
    for _ in range(300):
        at, size = rng.randrange(len(text)), rng.randrange(40)
        damaged = text[:at] + "".join(rng.choices('%(){}"\\=, \nxS', k=rng.randrange(4))) + text[at + size :]
        try:
            module = hlo.parse(damaged)
        except ArgumentError:
            continue
        assert module.entry in module.computations
        assert hlo.splits(damaged) >= 1 and hlo.kernels(damaged) >= 0
        graph(damaged)
        read += 1
    assert read > 250


def test_a_megabyte_in_a_line_is_read_in_linear_time() -> None:
    """A kernel may stand in the configuration of its custom call, as MLIR or in base64."""
    for config in ("x" * 1_000_000, '"' + "y" * 1_000_000, '{ir = "' + r"\22(" * 250_000 + '"}'):
        text = entry(f'ROOT %c = f32[8]{{0}} custom-call(%p), custom_call_target="t", backend_config={config}')
        (call,) = hlo.parse(text).computations["main"].values()
        assert call.attributes["custom_call_target"] == "t"


# -- splits


def nothing(*_) -> None:
    return None


def told(callback: Callable, **how) -> Callable[[jax.Array], jax.Array]:
    """x, of which the callback is told."""

    def tell(x: jax.Array) -> jax.Array:
        callback(x[0, 0], **how)
        return x

    return tell


CALLBACKS = {
    "pure_callback": lambda x: jax.pure_callback(np.asarray, X, x),
    "io_callback": lambda x: io_callback(np.asarray, X, x),
    "io_callback ordered": lambda x: io_callback(np.asarray, X, x, ordered=True),
    "debug.callback": told(lambda x, **how: jax.debug.callback(nothing, x, **how)),
    "debug.print": told(lambda x, **how: jax.debug.print("{}", x, **how)),
    "debug.print ordered": told(lambda x, **how: jax.debug.print("{}", x, **how), ordered=True),
    "buffer_callback": lambda x: buffer_callback(nothing, X)(x),
}


@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS.keys())
def test_a_callback_is_a_boundary_wherever_it_stands(callback: Callable) -> None:
    assert hlo.splits(text_of(lambda x: scan(x, 5) @ x, X)) == 1
    assert hlo.splits(text_of(lambda x: callback(scan(x, 5)) @ x, X)) == 2
    assert hlo.splits(text_of(lambda x: scan(x, 5, callback) @ x, X)) == 2
    assert hlo.splits(text_of(lambda x: callback(scan(callback(x), 5, callback)) @ x, X)) == 4


def test_a_callback_in_a_branch_or_a_condition_is_a_boundary() -> None:
    callback = CALLBACKS["pure_callback"]
    branches = [jnp.sin, callback]
    assert hlo.splits(text_of(lambda x, i: jax.lax.switch(i, branches, x @ x), X, 0)) == 2
    assert (
        hlo.splits(text_of(lambda x: jax.lax.while_loop(lambda x: callback(x)[0, 0] > 0, lambda x: x @ x, x), X)) == 2
    )


def entry(*lines: str) -> str:
    """A module of one computation."""
    return "\n".join(["HloModule m", "", "ENTRY %main (p: f32[8]) -> f32[8] {", *(f"  {x}" for x in lines), "}", ""])


@pytest.mark.parametrize(
    "line",
    [
        '%c = f32[8]{0} custom-call(%p), custom_call_target="xla_python_cpu_callback"',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="xla_python_gpu_callback", backend_config="139"',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="xla_ffi_python_gpu_callback"',
        '%c = () custom-call(%p), custom_call_target="xla_ffi_partitioned_python_gpu_callback"',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="xla_buffer_python_gpu_callback_cmd_buffer"',
        '%c = ((f32[8]{0}), token[]) infeed(%t), infeed_config="x"',
        "%c = token[] outfeed(%p, %t), outfeed_shape=f32[8]{0}",
        "%c = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=2, is_host_transfer=true",
        "%c = (f32[8]{0}, u32[], token[]) recv(%t), channel_id=3, is_host_transfer=true",
        '%c = ((f32[8]{0}), f32[8]{0}, u32[]) call-start(%p), async_execution_thread="host", to_apply=%h',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="HostExecute", called_computations={%h}',
    ],
)
def test_spellings_of_host_boundaries(line: str) -> None:
    assert hlo.splits(entry("%p = f32[8]{0} parameter(0)", "%t = token[] after-all()", line)) == 2


@pytest.mark.parametrize(
    "line",
    [
        '%c = f32[8]{0} custom-call(%p), custom_call_target="minfer_readback", custom_call_has_side_effect=true',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="__cublas$lt$matmul", metadata={op_name="python_callback"}',
        '%c = (f32[8]{0}, u8[64]{0}) custom-call(%p), custom_call_target="__cudnn$convForward"',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="mosaic_gpu_v2"',
        '%c = f32[8]{0} custom-call(%p), custom_call_target="__gpu$xla.gpu.triton"',
        "%c = (f32[8]{0}, u32[], token[]) send(%p, %t), channel_id=2",
        "%c = token[] send-done(%p), channel_id=2, is_host_transfer=true",
        '%c = f32[8]{0} async-done(%p), async_execution_thread="host"',
        "%c = f32[8]{0} all-reduce-start(%p), channel_id=1, to_apply=%add",
    ],
)
def test_what_is_no_host_boundary(line: str) -> None:
    assert hlo.splits(entry("%p = f32[8]{0} parameter(0)", "%t = token[] after-all()", line)) == 1


def test_values_in_host_memory() -> None:
    out = "%a = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(%p)", "%b = f32[8]{0:S(5)} copy-done(%a)"
    back = "%c = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(%b)", "%d = f32[8]{0} copy-done(%c)"
    device, host = "%p = f32[8]{0} parameter(0)", "%b = f32[8]{0:T(256)S(5)} parameter(0)"
    assert hlo.splits(entry(device, *out)) == 1  # the readback
    assert hlo.splits(entry(host, *back)) == 1  # an input
    assert hlo.splits(entry(device, *out, *back)) == 2
    assert hlo.splits(entry(device, *out, "ROOT %c = f32[8]{0} copy(%b)")) == 2
    assert hlo.splits(entry(device, *out, "%e = f32[8]{0:S(5)} bitcast(%b)", "%c = f32[8]{0} fusion(%p, %e)")) == 2
    execute = '%h = f32[8]{0:S(5)} custom-call(%b), custom_call_target="HostExecute"'
    assert hlo.splits(entry(device, *out, execute, "%c = f32[8]{0} copy(%h)")) == 2  # one stay on the host
    carried = "%w = (f32[8]{0:S(5)}) while(%b), condition=%x, body=%y", "%g = f32[8]{0:S(5)} get-tuple-element(%w)"
    assert hlo.splits(entry(device, *out, *carried, "%c = f32[8]{0} copy(%g)")) == 2
    body = "%body (b: f32[8]) -> f32[8] {", f"  {host}", "  ROOT %r = f32[8]{0} negate(%b)", "}", ""
    main = entry(host, "ROOT %c = f32[8]{0} NAME(%b), kind=kLoop, ATTRIBUTE=%body")
    fused = "\n".join([*body, main]).replace("NAME", "fusion").replace("ATTRIBUTE", "calls")
    called = "\n".join([*body, main]).replace("NAME", "call").replace("ATTRIBUTE", "to_apply")
    assert hlo.splits(fused) == 1 and hlo.splits(called) == 2


def test_host_memory_and_host_compute_on_a_gpu() -> None:
    """An output in page-locked memory is no boundary; ``compute_on("device_host")`` in the middle is one."""
    assert hlo.splits((DATA / "hlo_h200_host_output.txt").read_text()) == 1
    assert hlo.splits((DATA / "hlo_h200_host_compute.txt").read_text()) == 2


REAL = ["prefill plain", "prefill pinned_host", "prefill ffi", "score", "decode early", "decode whole"]


@pytest.mark.parametrize("name", REAL)
def test_prefill_decode_and_scoring_are_one_split(name: str, tiny: Model) -> None:
    if name == "prefill ffi" and library() is None:
        pytest.skip("the native library is not built")
    assert hlo.splits(real_program(name, tiny)) == 1


@pytest.mark.parametrize("name", ["prefill plain", "score", "decode early", "decode whole"])
def test_a_callback_that_creeps_into_a_layer_is_seen(name: str, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("minfer_jax.models.forward")
    feed_forward = module.feed_forward

    def spied(layer, config, x, *more):
        jax.debug.callback(nothing, x)
        return feed_forward(layer, config, x, *more)

    monkeypatch.setattr(module, "feed_forward", spied)
    assert hlo.splits(real_program(name, traced_anew(tiny))) > 1


# -- kernels


def test_launches_of_a_module() -> None:
    text = r"""
%small (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %b = f32[8]{0} copy(%a)
}

%large (a.1: f32[8]) -> f32[8] {
  %a.1 = f32[8]{0} parameter(0)
  %b.1 = f32[8]{0} copy(%a.1)
  ROOT %b.2 = f32[8]{0} sort(%b.1), to_apply=%small
}

%command_buffer (a.2: f32[8]) -> f32[8] {
  %a.2 = f32[8]{0} parameter(0)
  %b.3 = (f32[8]{0}, s8[1024]{0}) custom-call(%a.2, %a.2), custom_call_target="__cublas$gemm"
  ROOT %b.4 = f32[8]{0} get-tuple-element(%b.3), index=0
}

%wrapped (a.3: f32[8]) -> f32[8] {
  %a.3 = f32[8]{0} parameter(0)
  %b.9 = f32[8]{0} copy(%a.3)
  ROOT %b.5 = f32[8]{0} reduce-scatter(%b.9), to_apply=%small
}

%body (a.4: f32[8]) -> f32[8] {
  %a.4 = f32[8]{0} parameter(0)
  %b.6 = f32[8]{0} conditional(%a.4, %a.4, %a.4), true_computation=%large, false_computation=%small
  ROOT %b.7 = f32[8]{0} call(%b.6), to_apply=%large
}

%condition (a.5: f32[8]) -> pred[] {
  %a.5 = f32[8]{0} parameter(0)
  ROOT %b.8 = pred[] compare(%a.5, %a.5), direction=LT
}

ENTRY %main (a.6: f32[8]) -> f32[8] {
  %a.6 = f32[8]{0} parameter(0)
  %c.1 = f32[8]{0} call(%a.6), to_apply=%command_buffer
  %c.2 = ((f32[8]{0}), f32[8]{0}) async-start(%c.1), calls=%wrapped
  %c.3 = f32[8]{0} async-done(%c.2)
  %c.4 = f32[8]{0} all-reduce-start(%c.3), to_apply=%small
  %c.5 = f32[8]{0} all-reduce-done(%c.4)
  %c.6 = f32[8]{0} fusion(%c.5), kind=kLoop, calls=%large
  %c.7 = f32[8]{0} while(%c.6), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %c.8 = f32[8]{0} while(%c.7), condition=%condition, body=%body
  %c.9 = f32[4]{0} never-heard-of(%c.8)
  ROOT %c.10 = f32[2,2]{1,0} bitcast(%c.9)
}
"""
    body = 1 + 2  # the smaller branch, and a call of the larger one
    assert hlo.kernels(text) == 1 + 2 + 1 + 1 + 10 * body + (body + 1) + 1


def test_launches_on_a_gpu_are_those_its_profiler_saw() -> None:
    """One call of this scan of 29 steps put 148 kernels and copies on the H200's stream."""
    assert hlo.kernels((DATA / "hlo_h200_scan.txt").read_text()) == 148


def test_every_product_of_a_chain_adds_the_same() -> None:
    def chain(n: int) -> int:
        def f(x: jax.Array) -> jax.Array:
            y = x @ x
            for _ in range(n - 1):
                y = jnp.tanh(y) @ x
            return y

        return hlo.kernels(text_of(f, X))

    one, two, three = map(chain, (1, 2, 3))
    assert one == 1 and three - two == two - one >= 1


def test_a_loop_body_counts_as_often_as_it_runs() -> None:
    ten, twenty, thirty = (hlo.kernels(text_of(lambda x, n=n: scan(x, n), X)) for n in (10, 20, 30))
    assert thirty - twenty == twenty - ten and (twenty - ten) % 10 == 0
    body, before = (twenty - ten) // 10, 2 * ten - twenty
    assert body >= 2 and 0 <= before <= 4  # the product and the counter; what goes into the loop is copied

    nested = {
        (outer, inner): hlo.kernels(
            text_of(lambda x, o=outer, i=inner: jax.lax.fori_loop(0, o, lambda _, x: scan(x, i), x), X)
        )
        for outer in (5, 10)
        for inner in (7, 14)
    }
    more_inside = nested[5, 14] - nested[5, 7]
    assert more_inside == 5 * 7 * body
    assert nested[10, 14] - nested[10, 7] == 2 * more_inside

    unknown = hlo.kernels(text_of(lambda x, n: jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x), X, 9))
    assert body <= unknown <= before + body + 1  # once, and its condition
