"""Table B: what names a program, its graph and its shape."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import forward, init_cache
from minfer_jax.native import library
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.keys import graph_uid, traced_settings
from minfer_jax.runtime.runtime import as_runtime
from minfer_jax.scoring import score_tokens
from tests.runtime.runs import (
    PROMOTIONS,
    pure,
    run,
)


def test_b_uid_covers_config_implementation_dtypes_and_versions(
    nano_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uid(model: Model) -> str:
        return graph_uid(model.config, model.params, traced_settings())

    nano = load(nano_path, implementation="dense")
    uids = [
        uid(nano),
        uid(replace(nano, config=replace(nano.config, rms_eps=2e-5))),
        uid(replace(nano, config=replace(nano.config, windows=(7,)))),
        uid(load(nano_path, implementation="dense", n_ctx=128)),
        uid(load(nano_path, dtype="bfloat16")),
        uid(load(nano_path, implementation="xla")),
        uid(replace(nano, params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), nano.params))),
    ]
    if library() is not None:
        uids += [uid(load(nano_path, implementation="ffi", precision=how)) for how in ("default", "exact")]
    for package in ("minfer_jax", "jax"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{package}.__version__", "0")
            uids.append(uid(nano))
    with jax.default_matmul_precision("bfloat16"):
        uids.append(uid(nano))
    assert len(set(uids)) == len(uids)
    other_weights = replace(nano, params=jax.tree.map(lambda x: x + 1, nano.params))
    assert uid(other_weights) == uid(load(nano_path, implementation="dense")) == uids[0] == Runtime(nano).graph_uid


def test_b_shape_covers_kind_batch_tokens_n_out_and_cache_length(nano: Model) -> None:
    runtime = Runtime(nano, readback="plain")
    run(runtime, 5)
    run(runtime, 5, 2)
    run(runtime, 6)
    run(runtime, 5, tail_ids=np.array([3]))
    for length, dtype in ((32, jnp.float32), (48, jnp.float32), (48, jnp.bfloat16)):
        run(runtime, 5, cache=init_cache(nano.config, 1, length, dtype))
    run(runtime, 1, cache=init_cache(nano.config, 1, 32))
    score_tokens(runtime, [([1, 2], [3, 4, 5])])
    info = runtime.cache_info()
    assert [shape.shape for shape in info.shapes.values()] == [
        "prefill b1 t5 o5 c0",
        "prefill b2 t5 o10 c0",
        "prefill b1 t6 o6 c0",
        "prefill b1 t5 o1 c0",
        "prefill b1 t5 o5 c32",
        "prefill b1 t5 o5 c48",
        "prefill b1 t5 o5 c48 bfloat16",
        "decode b1 t1 o1 c32",
        "score b1 t4 o3 c0",
    ]
    assert all(name == f"{runtime.graph_uid}/{shape.shape}" for name, shape in info.shapes.items())


def test_b_models_of_another_graph_never_share_a_program(nano: Model, nano_path: Path) -> None:
    """Two models in one process, through the programs that plain models share: each has its own answers."""
    other = load(nano_path, implementation="xla")
    shifted = replace(nano, params=jax.tree.map(lambda x: x * 1.5, nano.params))
    for _ in range(4):
        one, two, three = (score_tokens(m, [([1, 2, 3, 4, 5], [6])])[0].logprob for m in (nano, other, shifted))
        assert one == pytest.approx(two, abs=1e-5) and abs(one - three) > 1e-3
        as_runtime(nano).settle()


TWO_DEVICES = """
import sys
from dataclasses import replace
import jax, numpy as np
import minfer_jax as mj
model = mj.load(sys.argv[1])
first, second = (replace(model, params=jax.device_put(model.params, device)) for device in jax.devices())
pairs = [([1, 2, 3], [4, 5])]
values = [mj.score_tokens(m, pairs)[0].logprob for m in (second, first, model, second)]
np.testing.assert_allclose(values, values[0], atol=1e-5)
assert len({mj.Runtime(m).graph_uid for m in (model, first, second)}) == 3
"""


def test_b_models_on_two_devices(nano_path: Path) -> None:
    """Where weights have been put is part of the key."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, str(nano_path)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_b_jit_switched_off_for_debugging_is_no_obstacle(nano: Model) -> None:
    with jax.disable_jit():
        logits = run(Runtime(nano), 5)
    np.testing.assert_allclose(logits, pure(nano, 5), rtol=0, atol=1e-5)


@PROMOTIONS
def test_b_programs_are_compiled_as_jax_was_set_when_the_runtime_was_made(
    promotion, nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a caller, or the thread that promotes, has it set to."""
    with jax.default_matmul_precision("highest"):
        runtime = Runtime(nano, promotion=promotion)
    seen = []

    def noting(*args):
        seen.append(jax.config.jax_default_matmul_precision)
        return forward(*args)

    monkeypatch.setattr("minfer_jax.runtime.jitted.forward", noting)
    with jax.default_matmul_precision("bfloat16"):
        for _ in range(3):
            run(runtime, 5)
        runtime.settle()
    assert seen == ["highest", "highest"]
