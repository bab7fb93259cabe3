"""Log-probabilities of texts and choices against llama.cpp in float32 (S01, T02, N02)."""

import numpy as np
import pytest

from minfer_jax.model import Model
from minfer_jax.scoring import multiple_choice, multiple_choice_batch, score_texts, score_tokens
from tests.promises import LARGEST, MEAN, rounding
from tests.scoring.golden import GOLDEN, LIMIT, LONG_TEXT
from tests.scoring.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_s01_every_token_of_the_golden_texts(exact: Model, name: str) -> None:
    golden = GOLDEN[name]
    prefix = [golden["bos"]] if golden["add_bos"] else []
    scores = score_texts(exact, [text["text"] for text in golden["texts"].values()])
    for score, text in zip(scores, golden["texts"].values(), strict=True):
        assert [*score.prefix, *score.tokens] == text["ids"]
        assert score.prefix == prefix
        # n ids give n values; the first is missing unless BOS stands before it.
        assert len(score.token_logprobs) == len(score.tokens)
        ours, wanted = [*([None] * len(prefix)), *score.token_logprobs], text["token_logprobs"]
        assert ours[0] is None and wanted[0] is None and None not in ours[1:]
        np.testing.assert_allclose(ours[1:], wanted[1:], rtol=0, atol=LIMIT[name])
        assert score.logprob == pytest.approx(sum(ours[1:]))


@pytest.mark.parametrize("name", MODELS)
def test_s01_one_text_alone_and_n02_noise_of_the_quantised_run(exact: Model, name: str) -> None:
    golden = GOLDEN[name]["score"]
    (score,) = score_texts(exact, [golden["text"]])
    ours = [v for v in score.token_logprobs if v is not None]
    np.testing.assert_allclose(ours, golden["logprobs_f32_weights"], rtol=0, atol=LIMIT[name])
    # llama.cpp on the quantised file rounds activations to 8 bits: near it only to 0.6.
    np.testing.assert_allclose(ours, golden["logprobs_kv_f16"], rtol=0, atol=0.6)


@pytest.mark.parametrize("name", MODELS)
def test_s01_no_value_depends_on_what_follows(model: Model, name: str) -> None:
    ids = GOLDEN[name]["score"]["ids"]
    (whole,) = score_tokens(model, [(ids[:1], ids[1:])])
    for n in (2, 9, 16):
        (part,) = score_tokens(model, [(ids[:1], ids[1:n])])
        bound = rounding(model, LIMIT[name])
        np.testing.assert_allclose(part.token_logprobs, whole.token_logprobs[: n - 1], rtol=0, atol=bound)


@pytest.mark.parametrize("name", MODELS)
def test_s01_a_text_of_one_token(exact: Model, name: str) -> None:
    (score,) = score_texts(exact, ["The"])
    assert score.tokens == GOLDEN[name]["score"]["ids"][GOLDEN[name]["add_bos"] :][:1]
    if GOLDEN[name]["add_bos"]:
        wanted = GOLDEN[name]["score"]["logprobs_f32_weights"][0]
        assert score.token_logprobs == [pytest.approx(wanted, abs=LIMIT[name])]
    else:
        assert score.token_logprobs == [None] and score.logprob == 0.0 and score.windows == 0


@pytest.mark.parametrize("name", MODELS)
def test_t02_bos_once_twice_or_not_at_all(exact: Model, name: str) -> None:
    golden = GOLDEN[name]
    marks = golden["fingerprints"]
    bos, ids = golden["bos"], golden["score"]["ids"]
    if golden["add_bos"]:
        # Ids are taken as they are: the sum without the first text id tells the three apart.
        wanted = {(bos,): marks["correct"], (bos, bos): marks["bug_double_bos"], (): marks["bug_no_bos"]}
        ids = ids[1:]
    else:
        wanted = {(): marks["correct"], (bos,): marks["bug_bos_added"]}
    scores = score_tokens(exact, [([*before, ids[0]], ids[1:]) for before in wanted])
    limit = 5 * LIMIT[name]
    assert [score.logprob for score in scores] == [pytest.approx(value, abs=limit) for value in wanted.values()]


@pytest.mark.parametrize("name", MODELS)
def test_long_text(exact: Model, name: str) -> None:
    # Beyond Gemma's sliding window of 512; without it the sum is off by 2.8.
    golden = GOLDEN[name]["long_text"]
    (score,) = score_texts(exact, [LONG_TEXT])
    ids = [*score.prefix, *score.tokens]
    assert (len(ids), ids[:8], ids[-8:]) == (golden["n_ids"], golden["first8"], golden["last8"])
    values = np.array([v for v in score.token_logprobs if v is not None])
    np.testing.assert_allclose(values[-32:], golden["last32_logprobs"], rtol=0, atol=LIMIT[name])
    limit = 5 * LIMIT[name]
    assert score.logprob == pytest.approx(golden["sum_all"], abs=limit)
    assert values[:32].sum() == pytest.approx(golden["sum_first32"], abs=limit)
    if "sum_from_position_512" in golden:
        assert values[511:].sum() == pytest.approx(golden["sum_from_position_512"], abs=limit)


@pytest.mark.parametrize("name", MODELS)
def test_choices(exact: Model, name: str) -> None:
    questions = GOLDEN[name]["choices"]
    results = multiple_choice_batch(exact, [(q["context"], [c["choice"] for c in q["choices"]]) for q in questions])
    for result, question in zip(results, questions, strict=True):
        wanted = [choice["logprob"] for choice in question["choices"]]
        for score, choice in zip(result.scores, question["choices"], strict=True):
            assert score.tokens == choice["ids"]
            assert score.logprob == pytest.approx(choice["logprob"], abs=2 * LIMIT[name])
            assert score.is_greedy == choice["greedy"], (question["context"], choice)
        assert result.best_by_sum == int(np.argmax(wanted))
        assert result.sums == [score.logprob for score in result.scores]


@pytest.mark.parametrize("name", MODELS)
def test_s02_multiple_choice_by_sum_token_and_byte(exact: Model, name: str) -> None:
    golden = GOLDEN[name]["multiple_choice"]
    limit = 2 * LIMIT[name]
    for context, cut in ((golden["context"], 0), (golden["context"] + " ", 1)):  # where the space stands is no matter
        result = multiple_choice(exact, context, [choice[cut:] for choice in golden["choices"]])
        for i, wanted in enumerate(golden["scores"]):
            assert len(result.scores[i].tokens) == wanted["n_tokens"]
            assert result.sums[i] == pytest.approx(wanted["sum"], abs=limit)
            assert result.per_token[i] == pytest.approx(wanted["per_token"], abs=limit)
            assert result.per_byte[i] == pytest.approx(wanted["per_byte"], abs=limit)
        assert result.best_by_sum == golden["best_by_sum"]
        assert result.best_by_token == golden["best_by_per_token"]
        if name != "gemma270":  # two choices within 0.0002 of each other
            assert result.best_by_byte == golden["best_by_per_byte"]


@pytest.mark.parametrize("name", MODELS)
def test_s01_the_default_is_as_near_as_promised(model: Model, name: str) -> None:
    texts = GOLDEN[name]["texts"].values()
    scores = score_texts(model, [text["text"] for text in texts])
    ours = [value for score in scores for value in score.token_logprobs if value is not None]
    off = np.abs(np.subtract(ours, [value for text in texts for value in text["token_logprobs"][1:]]))
    assert len(off) > 100 and off.mean() <= MEAN and off.max() <= LARGEST


@pytest.mark.parametrize("name", MODELS)
def test_s02_the_default_chooses_the_same(model: Model, name: str) -> None:
    questions = GOLDEN[name]["choices"]
    results = multiple_choice_batch(model, [(q["context"], [c["choice"] for c in q["choices"]]) for q in questions])
    for result, question in zip(results, questions, strict=True):
        wanted = [choice["logprob"] for choice in question["choices"]]
        assert result.best_by_sum == int(np.argmax(wanted))
        assert result.sums == pytest.approx(wanted, abs=LARGEST)
