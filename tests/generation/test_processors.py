"""Logits processors: what they are given, what they change, and what they must not disturb."""

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError, NumericsError
from minfer_jax.generation import generate, generate_batch, stream
from minfer_jax.model import Model
from minfer_jax.native import library
from minfer_jax.runtime import Runtime
from minfer_jax.sampling import Sampler
from tests.generation.golden import GOLDEN

GREEDY = Sampler(temperature=0)
CASES = GOLDEN["smol135"]["short"]


def same(ids: list[int], logits: np.ndarray) -> np.ndarray:
    return logits


def test_the_identity_changes_nothing(smol_model: Model) -> None:
    prompts = [case["prompt_ids"] for case in CASES[:3]]
    for sampler in (GREEDY, Sampler(temperature=1.2, seed=5, repetition_penalty=1.1)):
        plain = generate_batch(smol_model, prompts, max_tokens=10, sampler=sampler)
        through = generate_batch(smol_model, prompts, max_tokens=10, sampler=sampler, logits_processors=[same])
        assert [g.tokens for g in through] == [g.tokens for g in plain]
        for one, other in zip(through, plain, strict=True):
            np.testing.assert_allclose(one.token_logprobs, other.token_logprobs, atol=1e-4)
    assert through[0].tokens != CASES[0]["ids"][:10]  # the last ones were sampled


def test_they_see_prompt_and_output_and_run_in_order(smol_model: Model) -> None:
    case, seen, order = CASES[0], [], []

    def note(ids: list[int], logits: np.ndarray) -> np.ndarray:
        seen.append(list(ids))
        order.append("first")
        ids.clear()  # a list and an array of its own: nobody else sees this
        logits[:] = 0
        return np.zeros_like(logits)

    def restore(ids: list[int], logits: np.ndarray) -> np.ndarray:
        order.append("second")
        assert not logits.any() and ids == seen[-1]
        logits[case["ids"][len(seen) - 1]] = 1
        return logits

    out = generate(smol_model, case["prompt_ids"], max_tokens=5, sampler=GREEDY, logits_processors=[note, restore])
    assert out.tokens == case["ids"][:5]
    assert seen == [case["prompt_ids"] + case["ids"][:n] for n in range(5)]
    assert order == ["first", "second"] * 5
    # The log-probability is the model's own, whatever the processors did.
    plain = generate(smol_model, case["prompt_ids"], max_tokens=5, sampler=GREEDY)
    np.testing.assert_allclose(out.token_logprobs, plain.token_logprobs, atol=1e-4)


def test_a_token_is_banned_in_generate_and_stream(smol_model: Model) -> None:
    case = CASES[0]
    banned = case["ids"][0]

    def ban(ids: list[int], logits: np.ndarray) -> np.ndarray:
        logits[banned] = -np.inf
        return logits

    out = generate(smol_model, case["prompt_ids"], max_tokens=8, sampler=GREEDY, logits_processors=[ban])
    assert banned not in out.tokens
    by_bias = Sampler(temperature=0, logit_bias={banned: -np.inf})
    assert out.tokens == generate(smol_model, case["prompt_ids"], max_tokens=8, sampler=by_bias).tokens
    pieces = stream(smol_model, case["prompt_ids"], max_tokens=8, sampler=GREEDY, logits_processors=[ban])
    assert "".join(pieces) == out.text


def test_rows_end_at_different_times(smol_model: Model) -> None:
    """A row that has ended is not asked any more, and the others go on as they would alone."""
    end = smol_model.tokenizer.eos_id
    asked = [0, 0]
    prompts = [case["prompt_ids"] for case in CASES[:2]]

    def stop_first(ids: list[int], logits: np.ndarray) -> np.ndarray:
        row = 0 if ids[: len(prompts[0])] == prompts[0] else 1
        asked[row] += 1
        if row == 0 and len(ids) == len(prompts[0]) + 2:
            logits[end] = 1e6
        return logits

    first, second = generate_batch(
        smol_model, prompts, max_tokens=6, sampler=GREEDY, stop_ids=[end], logits_processors=[stop_first]
    )
    assert first.tokens == CASES[0]["ids"][:2] and first.stopped_by == end
    assert second.tokens == CASES[1]["ids"][:6] and asked == [3, 6]


def test_a_processor_may_call_the_runtime(smol_model: Model) -> None:
    """Its call overwrites the buffer of the logits that are being processed."""
    if library() is None:
        pytest.skip("the native library is not built")
    runtime = Runtime(smol_model, readback="ffi")
    other = np.array([[5, 6, 7]])

    def disturb(ids: list[int], logits: np.ndarray) -> np.ndarray:
        runtime.forward(other, np.arange(3)[None])
        return logits

    out = generate(runtime, CASES[0]["prompt_ids"], max_tokens=5, sampler=GREEDY, logits_processors=[disturb])
    plain = generate(smol_model, CASES[0]["prompt_ids"], max_tokens=5, sampler=GREEDY)
    assert out.tokens == CASES[0]["ids"][:5]
    np.testing.assert_allclose(out.token_logprobs, plain.token_logprobs, atol=1e-4)


@pytest.mark.parametrize(
    "bad, message",
    [
        (lambda ids, logits: None, r"logits_processors\[1\] returned None; return float32 \(49152,\)"),
        (lambda ids, logits: logits[:5], r"logits_processors\[1\] returned float32 \(5,\); return"),
        (lambda ids, logits: logits.astype(int), r"logits_processors\[1\] returned int64 \(49152,\); return"),
    ],
)
def test_what_is_returned_is_checked(smol_model: Model, bad, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        generate(smol_model, "Hello", max_tokens=3, logits_processors=[same, bad])


def test_bad_processors_and_their_errors(smol_model: Model) -> None:
    with pytest.raises(ArgumentError, match="logits_processors"):
        generate(smol_model, "Hello", logits_processors=same)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="logits_processors is .*give a list of functions"):
        generate(smol_model, "Hello", logits_processors=[3])  # type: ignore[list-item]
    with pytest.raises(ZeroDivisionError):
        generate(smol_model, "Hello", logits_processors=[lambda ids, logits: 1 / 0])  # type: ignore[list-item, return-value]
    with pytest.raises(NumericsError, match="token 1 of the output"):
        generate(smol_model, "Hello", max_tokens=2, logits_processors=[lambda ids, logits: logits - np.inf])
    case = CASES[0]
    assert generate(smol_model, case["prompt_ids"], max_tokens=4, sampler=GREEDY).tokens == case["ids"][:4]
