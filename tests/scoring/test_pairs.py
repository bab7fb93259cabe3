"""Where a continuation starts (S02), and what is empty (S03)."""

import logging

import pytest

from minfer_jax.model import Model
from minfer_jax.scoring import score, score_stream, score_texts
from minfer_jax.scoring.pairs import encode_pair
from tests.promises import LARGEST, rounding
from tests.scoring.golden import GOLDEN, LIMIT
from tests.scoring.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_s02_ids_and_sums_of_the_golden_pairs(exact: Model, name: str, caplog: pytest.LogCaptureFixture) -> None:
    golden = GOLDEN[name]["score_pairs"]
    pairs = [(case["context"], case["continuation"]) for case in golden]
    with caplog.at_level(logging.WARNING, "minfer_jax"):
        scores = score(exact, pairs)
    for case, result in zip(golden, scores, strict=True):
        ids = encode_pair(exact.tokenizer, case["context"], case["continuation"])
        start = case.get("prefix_used", []) if not case["context_ids"] else []
        assert ids.context + ids.continuation == start + case["whole_ids"], case
        assert ids.continuation == result.tokens == case["continuation_ids"]
        assert result.merged == (not case["context_is_prefix_of_whole"])
        assert result.empty == (not case["continuation_ids"])
        assert result.logprob == pytest.approx(case.get("sum_logprob", 0.0), abs=3 * LIMIT[name]), case
        if case.get("is_greedy") is not None and not result.empty:
            assert result.is_greedy == case["is_greedy"]
    # A boundary inside a token is said aloud, too.
    merged = sum(not case["context_is_prefix_of_whole"] for case in golden)
    assert f"{merged} of {len(golden)} continuations begin inside a token" in caplog.text


def test_s03_empty_context_and_continuation(smol_model: Model) -> None:
    cases = GOLDEN["smol135"]["score_pairs"]
    (wanted,) = (case["sum_logprob"] for case in cases if case["context"] == "")
    scores = score(smol_model, [("", "Paris is big"), ("Paris", ""), ("", ""), ("  ", ""), ("Hello", " world")])
    assert scores[0].logprob == pytest.approx(wanted, abs=LARGEST)  # after BOS
    for result in scores[1:3]:
        assert (result.logprob, result.tokens, result.empty, result.merged) == (0.0, [], True, False)
    assert not scores[3].empty and scores[3].tokens == smol_model.tokenizer.encode("  ")  # white space is scored
    assert not scores[4].empty


def test_s03_empty_texts(smol_model: Model) -> None:
    empty, text = score_texts(smol_model, ["", "Hello world"])
    assert (empty.logprob, empty.tokens, empty.token_logprobs) == (0.0, [], [])
    assert len(text.tokens) == 2


def test_control_tokens_only_on_request(smol_model: Model) -> None:
    pair = ("<|im_start|>user\n", "Hi<|im_end|>")
    plain, parsed = (encode_pair(smol_model.tokenizer, *pair, parse_special=special) for special in (False, True))
    assert 1 not in plain.context and 2 not in plain.continuation
    assert parsed.context[0] == 1 and parsed.continuation[-1] == 2
    (result,) = score(smol_model, [pair], parse_special=True)
    assert result.tokens == parsed.continuation


def test_a_text_that_spells_out_the_start_token_is_not_scored_twice(tiny_model: Model) -> None:
    bos = tiny_model.tokenizer.bos_id
    pair = encode_pair(tiny_model.tokenizer, "", "<|begin|>the", parse_special=True)
    assert pair.context == [bos] and bos not in pair.continuation and pair.continuation


def test_stream_gives_the_scores_in_order_window_by_window(tiny_model: Model, monkeypatch) -> None:
    pairs = [("in the " * (1 + i * 7 % 11), "er" * (1 + i % 3)) for i in range(50)]
    whole = score(tiny_model, pairs)
    monkeypatch.setattr("minfer_jax.scoring.pairs._WINDOW", 16)
    read = 0

    def source():
        nonlocal read
        for pair in pairs:
            read += 1
            yield pair

    stream = score_stream(tiny_model, source())
    first = next(stream)
    assert read <= 16 + 1
    for ours, wanted in zip([first, *stream], whole, strict=True):
        assert ours.tokens == wanted.tokens
        assert ours.token_logprobs == pytest.approx(wanted.token_logprobs, abs=rounding(tiny_model, 1e-4))
