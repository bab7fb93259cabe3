"""Overflow, NaN (N01), ids out of range (T08) and arguments of the wrong kind: an error that names the input."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import minfer_jax as mj
from minfer_jax.errors import ArgumentError, ContextLengthError, NumericsError, TokenizerError
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.scoring import multiple_choice, multiple_choice_batch, perplexity, score, score_texts, score_tokens
from tests.scoring.golden import GOLDEN


def broken(model: Model, value: float) -> Model:
    """The model with one weight set to ``value``."""
    params = replace(model.params, final_norm=model.params.final_norm.at[0].set(value))
    return replace(model, params=params)


@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_n01_a_value_that_is_not_finite_is_never_a_number(tiny_model: Model, value: float) -> None:
    model = broken(tiny_model, value)
    with pytest.raises(NumericsError, match=r"^pair 0: .* token 0 is not finite; .* llama\.gguf hold NaN"):
        score(model, [("in the", " end")])
    with pytest.raises(NumericsError, match="text 0: "):
        score_texts(model, ["in the end"])
    with pytest.raises(NumericsError, match="^chunk 0: "):
        perplexity(model, "the " * 100, n_ctx=16)
    with pytest.raises(NumericsError, match="^the log-probability of scored token 0 is not finite"):
        perplexity(model, "the " * 100, n_ctx=16, protocol="rolling")
    with pytest.raises(NumericsError, match="^question 0, choice 0: ") as caught:
        multiple_choice_batch(model, [("in the", [" end"])])
    assert caught.value.index == 0
    with pytest.raises(NumericsError, match="pair 1: "):
        score_tokens(model, [([1], []), ([1], [2])])


def test_n01_an_infinite_weight_in_a_real_model(smol_model: Model) -> None:
    with pytest.raises(NumericsError, match="pair 0: "):
        score(broken(smol_model, jnp.inf), [("The capital of France is", " Paris")])


@pytest.mark.models
@pytest.mark.parametrize(("dtype", "off"), [("bfloat16", 0.5), ("float16", 0.05)])
def test_n01_gemma_is_sound_in_16_bits(gemma270, dtype: str, off: float) -> None:
    """Its residual stream reaches 1e5, and stays float32. Measured: 0.152 and 0.002 off."""
    model = load(gemma270, dtype=dtype)
    golden = GOLDEN["gemma270"]
    (result,) = score_texts(model, [golden["score"]["text"]])
    assert sum(result.token_logprobs[1:]) == pytest.approx(golden["fingerprints"]["correct"], abs=off)
    with pytest.raises(NumericsError, match="pair 0: "):
        score(broken(model, jnp.inf), [("The capital of France is", " Paris")])


@pytest.mark.parametrize("bad", [-1, 49152, 2**31])
def test_t08_ids_out_of_range(smol_model: Model, bad: int) -> None:
    for pair in (([1, bad], [2]), ([1], [bad])):
        with pytest.raises(ArgumentError, match=r"^pair 1: id .* outside the vocabulary"):
            score_tokens(smol_model, [([1], [2]), pair])


@pytest.mark.models
def test_t08_unused_ids_have_a_score(qwen_model: Model) -> None:
    scores = score_tokens(qwen_model, [([785], [151665]), ([151935], [785])])
    assert all(score.logprob < 0 for score in scores)
    with pytest.raises(ArgumentError, match="outside the vocabulary"):
        score_tokens(qwen_model, [([785], [151936])])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([([], [1])], r"^pair 0: the context has no ids"),
        ([([1], [2]), ([1],)], r"^pair 1: got \(\[1\],\); give \(context ids, continuation ids\)"),
        ([([1], 2)], r"^pair 0: ids must be .* not int 2"),
        ([([1], [2]), 5], r"^pair 1: got 5"),
        ([([1], [2]), ([1], [2] * 257)], r"^pair 1: the continuation has 257 tokens and the context window 256"),
        ([("ab", "cd")], r"^pair 0: "),
        ([([1.5], [2])], r"^pair 0: "),
        ([([1], [2]), ({1, 2}, [3])], r"^pair 1: ids must be in order, not a set"),
        ([([1], frozenset([2]))], r"^pair 0: ids must be in order, not a set"),
        ([{(1,), (2,)}], r"^pair 0: got \{.*; give \(context ids, continuation ids\)"),
    ],
)
def test_bad_id_pairs(tiny_model: Model, pairs: list, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score_tokens(tiny_model, pairs)


@pytest.mark.parametrize("bad", ["ab", ("a",), ("a", 1), None, ("a", b"b")])
def test_bad_text_pairs(tiny_model: Model, bad: object) -> None:
    with pytest.raises(ArgumentError, match=r"^pair 1: got .* give two texts"):
        score(tiny_model, [("a", "b"), bad])  # type: ignore[list-item]


def test_text_that_cannot_be_encoded_is_named(tiny_model: Model) -> None:
    with pytest.raises(TokenizerError, match=r"^pair 1: the text holds the lone surrogate") as caught:
        score(tiny_model, [("a", "b"), ("a", "\ud800")])
    assert caught.value.index == 1 and caught.value.reason.startswith("the text holds")
    with pytest.raises(TokenizerError, match=r"^text 0: "):
        score_texts(tiny_model, ["a\ud800b"])
    with pytest.raises(ArgumentError, match=r"^text 1: "):
        score_texts(tiny_model, ["a", 1])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="^texts is"):
        score_texts(tiny_model, "a text")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "512"])
def test_bad_batch_tokens(tiny_model: Model, value: object) -> None:
    with pytest.raises(ArgumentError, match="batch_tokens is"):
        score(tiny_model, [("a", "b")], batch_tokens=value)  # type: ignore[arg-type]


def test_choices_without_a_token_of_their_own(tiny_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a question that must be refused was scored")

    monkeypatch.setattr("minfer_jax.runtime.runtime.Runtime.score", never)
    # "t" + "he" is one token, "the": nothing is left to score, and a sum of 0.0 would win.
    with pytest.raises(ArgumentError, match=r"^choice 1: 'he' has no token .* swallows the end of the context"):
        multiple_choice(tiny_model, "t", [" in", "he"])
    with pytest.raises(ArgumentError, match=r"^question 1, choice 1: '' has no token to score: it is empty") as caught:
        multiple_choice_batch(tiny_model, [("a", ["b"]), ("a", ["b", ""])])
    assert caught.value.index == 1 and caught.value.reason.startswith("choice 1: ''")


def test_bad_questions(tiny_model: Model) -> None:
    for bad in ([], "abc", [1], None, iter(())):
        with pytest.raises(ArgumentError, match=r"^choices is"):
            multiple_choice(tiny_model, "a", bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="^the context is 5"):
        multiple_choice(tiny_model, 5, ["a"])  # type: ignore[arg-type]
    for bad, message in (("abc", "got 'abc'"), (("a", 5), "choices is 5"), ((b"a", ["b"]), "the context is b'a'")):
        with pytest.raises(ArgumentError, match=f"^question 1: {message}"):
            multiple_choice_batch(tiny_model, [("a", ["b"]), bad])  # type: ignore[list-item]
    with pytest.raises(TokenizerError, match="^question 1, choice 2: the text holds the lone surrogate"):
        multiple_choice_batch(tiny_model, [("a", ["b"]), ("a", ["b", "c", "\ud800"])])
    with pytest.raises(ContextLengthError, match="^question 0, choice 1: the continuation has"):
        multiple_choice_batch(tiny_model, [("a", ["b", "z" * 300])])


def test_choices_may_come_from_a_generator(tiny_model: Model) -> None:
    choices = [" in", " the"]
    assert multiple_choice(tiny_model, "a", (c for c in choices)) == multiple_choice(tiny_model, "a", choices)


def test_nothing_in_gives_nothing_out(tiny_model: Model) -> None:
    assert score(tiny_model, []) == score_tokens(tiny_model, []) == score_texts(tiny_model, []) == []
    assert multiple_choice_batch(tiny_model, []) == []


@pytest.mark.parametrize("nothing", [None, 5, "text", {("a", "b")}, np.array(5)])
def test_inputs_that_are_not_many(tiny_model: Model, nothing: object) -> None:
    for call, name in (
        (mj.score, "pairs"),
        (mj.score_stream, "pairs"),
        (mj.score_tokens, "pairs"),
        (mj.score_texts, "texts"),
        (mj.multiple_choice_batch, "questions"),
        (mj.generate_batch, "prompts"),
    ):
        with pytest.raises(mj.ArgumentError, match=f"^{name} is"):
            call(tiny_model, nothing)
