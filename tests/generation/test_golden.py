"""Greedy text and its log-probabilities against llama.cpp in float32; several end tokens (E02); unused ids (T08)."""

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError
from minfer_jax.generation import generate, generate_batch
from minfer_jax.model import Model
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.generation.golden import GOLDEN, sure_steps
from tests.promises import LARGEST, rounding

GREEDY = Sampler(temperature=0)


def check_model(model: Model, name: str, near_tie: float, tolerance: float) -> None:
    for case in GOLDEN[name]["long"]:
        out = generate(model, case["prompt"], max_tokens=24, sampler=GREEDY)
        n = sure_steps(case["margins"], near_tie)
        assert out.n_prompt == len(case["prompt_ids"])
        assert out.tokens[:n] == case["greedy_ids"][:n], case["prompt"]
    for case in GOLDEN[name]["short"]:
        out = generate(model, case["prompt_ids"], max_tokens=len(case["ids"]), sampler=GREEDY)
        n = min(sure_steps(case["margins"], near_tie), len(out.tokens))
        assert out.tokens[:n] == case["ids"][:n], case["prompt"]
        np.testing.assert_allclose(out.token_logprobs[:n], case["logprobs"][:n], atol=tolerance)


def check_batch(model: Model, name: str, near_tie: float, tolerance: float) -> None:
    # K01: beside the golden rows, rows of 1, 17 and some 600 tokens, and another order.
    cases = GOLDEN[name]["short"]
    prompts = [case["prompt_ids"] for case in cases]
    long = (prompts[0] * 120)[:600]
    forward = generate_batch(model, [*prompts, [5], long], max_tokens=16, sampler=GREEDY)
    backward = generate_batch(model, [[7] * 17, *prompts[::-1]], max_tokens=16, sampler=GREEDY)[:0:-1]
    for batch in (forward, backward):
        for case, out in zip(cases, batch, strict=False):
            n = min(sure_steps(case["margins"], near_tie), len(out.tokens))
            assert out.tokens[:n] == case["ids"][:n], case["prompt"]
            np.testing.assert_allclose(out.token_logprobs[:n], case["logprobs"][:n], atol=tolerance)


# By default log-probabilities were seen off by up to 0.004, and a margin is the difference of two.


def test_golden_greedy_smol135(smol_model: Model, smol_exact: Model) -> None:
    check_model(smol_exact, "smol135", 0.005, 0.001)
    check_model(smol_model, "smol135", 0.01, LARGEST)


def test_k01_batch_smol135(smol_model: Model, smol_exact: Model) -> None:
    check_batch(smol_exact, "smol135", 0.005, 0.001)
    check_batch(smol_model, "smol135", 0.01, LARGEST)


@pytest.mark.models
def test_golden_greedy_qwen05(qwen_model: Model, qwen_exact: Model) -> None:
    check_model(qwen_exact, "qwen05", 0.005, 0.001)
    check_model(qwen_model, "qwen05", 0.01, LARGEST)


@pytest.mark.models
def test_golden_greedy_gemma270(gemma_model: Model, gemma_exact: Model) -> None:
    check_model(gemma_exact, "gemma270", 0.03, 0.01)
    check_model(gemma_model, "gemma270", 0.03, LARGEST)


@pytest.mark.models
def test_k01_batch_gemma270(gemma_model: Model, gemma_exact: Model) -> None:
    check_batch(gemma_exact, "gemma270", 0.03, 0.01)
    check_batch(gemma_model, "gemma270", 0.03, LARGEST)


def test_e02_chat_turn_ends_smol135(smol_model: Model) -> None:
    case = GOLDEN["smol135"]["short"][3]
    out = generate(smol_model, case["prompt_ids"], max_tokens=40, sampler=GREEDY)
    assert (out.tokens, out.finish_reason, out.stopped_by) == (case["ids"][:-1], "stop", 2)
    assert out.text == "1. Red\n2. Blue\n3. Green"
    assert out.end_logprob == pytest.approx(case["logprobs"][len(out.tokens)], abs=LARGEST)  # S01: of the EOS step, too


def test_e02_stop_ids_are_the_callers(smol_model: Model) -> None:
    case = GOLDEN["smol135"]["short"][3]
    on = generate(smol_model, case["prompt_ids"], max_tokens=14, sampler=GREEDY, stop_ids=[])
    assert on.tokens[:12] == case["ids"] and len(on.tokens) == 14 and on.finish_reason == "length"
    early = generate(smol_model, case["prompt_ids"], max_tokens=14, sampler=GREEDY, stop_ids=[10062])
    assert (early.tokens, early.stopped_by) == (case["ids"][:6], 10062)
    assert on.end_logprob is None and early.end_logprob == pytest.approx(case["logprobs"][6], abs=LARGEST)
    at_once = generate(smol_model, case["prompt_ids"], max_tokens=14, sampler=GREEDY, stop_ids=[case["ids"][0]])
    assert (at_once.text, at_once.tokens, at_once.finish_reason) == ("", [], "stop")
    with pytest.raises(ArgumentError, match="49152"):
        generate(smol_model, [1], stop_ids=[49152])


@pytest.mark.models
def test_e02_the_end_token_that_is_not_eos_qwen05(qwen_model: Model) -> None:
    case = GOLDEN["qwen05"]["short"][4]
    out = generate(qwen_model, case["prompt_ids"], max_tokens=40, sampler=GREEDY)
    assert (out.tokens, out.stopped_by) == (case["ids"][:12], 151643)
    assert out.text == "a + b\n\nprint(add(5, 3))" and out.finish_reason == "stop"
    chat = GOLDEN["qwen05"]["short"][3]
    assert generate(qwen_model, chat["prompt_ids"], max_tokens=40, sampler=GREEDY).stopped_by == 151645


@pytest.mark.models
def test_t08_an_id_without_a_token_is_empty_text_and_no_end(qwen_model: Model) -> None:
    out = generate(qwen_model, "Hello", max_tokens=3, sampler=Sampler(temperature=0, logit_bias={151900: 100}))
    assert (out.tokens, out.text, out.finish_reason) == ([151900] * 3, "", "length")


def test_t08_ids_out_of_range_never_reach_the_device(smol_model: Model) -> None:
    for bad in ([-1], [49152], [2**31], [1.5], ["1"], [[1]], 7, {1, 2}):
        with pytest.raises(ArgumentError):
            generate(smol_model, bad, max_tokens=1)


def test_a_generated_token_has_the_log_probability_of_a_scored_one(smol_model: Model) -> None:
    prompt = smol_model.tokenizer.encode("Once upon a time there was")
    beside = generate_batch(smol_model, [prompt, prompt[:3]], max_tokens=40, sampler=GREEDY)[0]
    alone = generate(smol_model, prompt, max_tokens=40, sampler=GREEDY)
    scored = score_tokens(smol_model, [(prompt, alone.tokens)])[0].token_logprobs
    for found in (alone.token_logprobs, beside.token_logprobs):
        np.testing.assert_allclose(found, scored, rtol=0, atol=rounding(smol_model, 1e-4))
