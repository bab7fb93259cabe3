"""Texts and contexts longer than the window (S03), rolling windows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minfer_jax.errors import ContextLengthError
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.scoring import score, score_texts, score_tokens
from minfer_jax.scoring.texts import windows_of
from tests.promises import rounding
from tests.scoring.golden import DATA, LONG_TEXT


def test_s03_context_is_cut_on_the_left(smol135) -> None:
    model = load(smol135, n_ctx=64)
    ids = model.tokenizer.encode(LONG_TEXT)
    context, continuation = ids[:200], ids[200:203]
    # The last id is never fed in, so 62 + 3 ids fit a window of 64.
    cut, by_hand, shorter = score_tokens(
        model, [(context, continuation), (context[-62:], continuation), (context[-61:], continuation)]
    )
    assert cut.truncated and not by_hand.truncated
    assert cut.tokens == continuation and len(cut.token_logprobs) == 3
    assert cut.token_logprobs == pytest.approx(by_hand.token_logprobs, abs=rounding(model, 1e-4))
    assert abs(cut.logprob - shorter.logprob) > 1e-4

    just_fits, one_more = score_tokens(model, [(context[:1], ids[200:264]), (context[:2], ids[200:264])])
    assert (just_fits.truncated, one_more.truncated) == (False, True)
    with pytest.raises(ContextLengthError, match=r"^pair 1: the continuation has 80 tokens .* window 64"):
        score_tokens(model, [(context, continuation), (context, ids[200:280])])

    text = model.tokenizer.decode(continuation)
    with pytest.raises(ContextLengthError, match=r"^pair 2: "):
        score(model, [("a", "b"), ("a", text), ("a", LONG_TEXT)])


def test_rolling_windows_equal_lm_eval() -> None:
    cases = json.loads((DATA / "rolling_windows.json").read_text())["cases"]
    for case in cases:
        ours = windows_of(case["n"] + 1, case["n_ctx"])
        assert [list(window) for window in ours] == case["windows"], case
    assert windows_of(0, 8) == windows_of(1, 8) == []


def test_long_texts_are_read_in_windows(tiny_model: Model) -> None:
    model = replace(tiny_model, config=replace(tiny_model.config, n_ctx=16))
    texts = ["the inner theater in the end " * 3, "the"]
    long, short = score_texts(model, texts)
    ids = model.tokenizer.encode(texts[0])
    windows = windows_of(len(ids), 16)
    assert (long.windows, short.windows) == (len(windows), len(windows_of(len(short.tokens), 16)))
    assert long.tokens == ids and long.token_logprobs[0] is None
    wanted = []
    for start, first, end in windows:
        (piece,) = score_tokens(model, [(ids[start:first], ids[first:end])])
        assert not piece.truncated
        wanted += piece.token_logprobs
    np.testing.assert_allclose(long.token_logprobs[1:], wanted, rtol=0, atol=rounding(model, 1e-4))
