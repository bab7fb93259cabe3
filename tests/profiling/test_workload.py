"""The work that is traced and measured is the work of generation, at the depth that is asked for."""

import itertools

import jax
import numpy as np
import pytest

from minfer_jax.errors import ContextLengthError
from minfer_jax.generation import generate_batch
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import forward
from minfer_jax.profiling import device
from minfer_jax.profiling.workload import GREEDY, Session, random_ids, score
from minfer_jax.runtime import Runtime
from tests.promises import rounding


@pytest.fixture(scope="module")
def model(tiny_gguf) -> Model:
    return load(tiny_gguf("llama"))


def written(session: Session) -> list[bool]:
    """Which positions of row 0 hold keys."""
    return (np.asarray(session.cache.k)[:, 0] != 0).any((0, 1, 3)).tolist()


def test_a_prompt_goes_in_behind_what_is_there(model: Model) -> None:
    runtime = Runtime(model, promotion="blocking")
    session = Session(runtime, 2, 7, 5)
    ids = random_ids(model.config, 2, 12)
    positions = np.tile(np.arange(12, dtype=np.int32), (2, 1))
    want = np.asarray(forward(model.params, model.config, ids, positions)[0])[:, -1]
    for _ in range(4):  # each of them anew, also by the promoted program
        np.testing.assert_allclose(session.prefill(), want, rtol=0, atol=rounding(model, 1e-4))
    assert written(session) == [True] * 12 + [False] * (session.cache.length - 12)


def test_tokens_are_those_of_generation(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, depth, more = 3, 6, 40
    runtime = Runtime(model, promotion="blocking")
    session = Session(runtime, rows, depth, more)
    prompts = random_ids(model.config, 4, depth + more)[:rows, : depth + 1].tolist()
    want = [out.tokens for out in generate_batch(model, prompts, max_tokens=more, sampler=GREEDY, stop_ids=[])]
    device_get = jax.device_get
    read: list[np.ndarray] = []
    monkeypatch.setattr(jax, "device_get", lambda out: read.append(device_get(out)[0]) or device_get(out))
    for _ in range(3):
        read.clear()
        with runtime.trace() as records:
            taken = session.generate(session.start())
        assert len(records) == len(taken) == 2 and sum(taken) >= more
        got = np.concatenate([tokens[:n] for tokens, n in zip(read, taken, strict=True)])
        assert got[:more, :rows].T.tolist() == want
    assert records[-1].promoted and records[-1].program.startswith("decode b3 ")
    assert written(session) == [True] * (depth + more) + [False] * (session.cache.length - depth - more)


def test_a_step_gives_the_logits_of_every_row(model: Model) -> None:
    runtime = Runtime(model)
    logits = Session(runtime, 2, 0, 1).step()
    want = forward(model.params, model.config, random_ids(model.config, 2, 1), np.zeros((2, 1), np.int32))[0]
    np.testing.assert_allclose(logits, want, rtol=0, atol=rounding(model, 1e-4))


def test_scoring_scores_every_token(model: Model) -> None:
    runtime = Runtime(model)
    with runtime.trace() as records:
        score(runtime, 3, 20)
    (record,) = records
    assert record.key.endswith("score b3 t20 o60 c0") and record.readback_us is not None


def test_too_many_tokens_are_refused_with_both_numbers(model: Model) -> None:
    with pytest.raises(ContextLengthError, match="257 .* 256"):
        Session(Runtime(model), 1, 200, 57)


def test_the_text_of_a_program_by_its_name(model: Model) -> None:
    runtime = Runtime(model)
    Session(runtime, 1, 0, 16).prefill()
    (name,) = runtime.cache_info().programs
    assert runtime.hlo(name).startswith("HloModule jit_forward_rows")
    assert runtime.hlo(name.split("/")[1]) == runtime.hlo(name)
    with pytest.raises(ValueError, match="'nothing'"):
        runtime.hlo("nothing")


def test_the_device_has_a_name_and_a_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(device, "_COPIED", 4096)
    monkeypatch.setattr(device.time, "perf_counter", lambda: float(next(clock)))
    # A second for each round of copies, which read and write 4096 bytes.
    assert device.copy_bandwidth() == 2 * 4096 * device._PER_ROUND
    assert device.device_name()
