"""Perplexity by both protocols: llama.cpp's number, lm-evaluation-harness' rule."""

import math
import re

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.scoring import perplexity, score_tokens
from tests.scoring.golden import GOLDEN, PERPLEXITY_TEXT
from tests.scoring.models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_protocol_to_four_digits(exact: Model, name: str) -> None:
    golden = GOLDEN[name]["perplexity"]
    result = perplexity(exact, PERPLEXITY_TEXT, n_ctx=512, max_chunks=golden["chunks"])
    assert (result.n_tokens, result.windows, result.n_scored) == (golden["n_tokens"], 8, golden["scored"])
    assert result.perplexity == pytest.approx(golden["ppl"], rel=5e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_default_is_within_a_thousandth(model: Model, name: str) -> None:
    golden = GOLDEN[name]["perplexity"]
    result = perplexity(model, PERPLEXITY_TEXT, n_ctx=512, max_chunks=golden["chunks"])
    assert result.perplexity == pytest.approx(golden["ppl"], rel=1e-3)


def test_llama_cpp_protocol_by_hand(tiny_gguf) -> None:
    from minfer_jax.load import load

    for case in ("llama", "mistral"):  # without BOS and with
        model = load(tiny_gguf(case))
        text = "the inner theater in an era " * 6
        result = perplexity(model, text, n_ctx=16)
        ids = model.tokenizer.encode(text)
        values = []
        for begin in range(0, len(ids) - len(ids) % 16, 16):
            chunk = ids[begin : begin + 16]
            if model.tokenizer.add_bos:
                chunk[0] = model.tokenizer.bos_id
            (scored,) = score_tokens(model, [(chunk[:9], chunk[9:])])
            values += scored.token_logprobs
        assert (result.windows, result.n_scored, result.n_tokens) == (len(ids) // 16, len(values), len(ids))
        assert result.n_scored == 7 * result.windows
        assert result.nll == pytest.approx(-np.mean(values), abs=1e-5)
        assert result.perplexity == pytest.approx(math.exp(-np.mean(values)), rel=1e-5)
        error = np.std(values, ddof=1) / math.sqrt(len(values)) * math.exp(-np.mean(values))
        assert result.standard_error == pytest.approx(error, rel=1e-4)
        assert result.word_perplexity is None


def test_rolling_protocol_scores_every_token_once(tiny_gguf) -> None:
    from minfer_jax.load import load

    for case in ("llama", "mistral"):
        model = load(tiny_gguf(case))
        text = " the inner théâtre in an era\n" * 5
        tokenizer = model.tokenizer
        ids = tokenizer.encode(text, add_bos=False)
        result = perplexity(model, text, n_ctx=16, protocol="rolling")
        # lm-evaluation-harness: the first window after BOS, then after one id of context, the last one full.
        total, done = 0.0, 0
        while done < len(ids):
            n = min(16, len(ids) - done)
            context = [tokenizer.bos_id] if done == 0 else ids[done + n - 17 : done]
            total += score_tokens(model, [(context, ids[done : done + n])])[0].logprob
            done += n
        assert result.n_scored == result.n_tokens == len(ids)
        assert result.logprob == pytest.approx(total, abs=1e-3)
        assert result.word_perplexity == pytest.approx(math.exp(-total / len(re.split(r"\s+", text))), rel=1e-3)
        assert result.byte_perplexity == pytest.approx(math.exp(-total / len(text.encode())), rel=1e-4)
        assert result.bits_per_byte == pytest.approx(-total / len(text.encode()) / math.log(2), rel=1e-4)


def test_one_endless_word_has_an_infinite_word_perplexity(tiny_model: Model) -> None:
    result = perplexity(tiny_model, "e" * 1000, protocol="rolling")
    assert result.word_perplexity == math.inf and math.isfinite(result.perplexity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "short"}, r"the text has 5 tokens and this protocol needs 512, .* a smaller n_ctx"),
        ({"text": "", "protocol": "rolling"}, "the text is empty"),
        ({"protocol": "wikitext"}, 'protocol is \'wikitext\'; choose "llama.cpp" or "rolling"'),
        ({"n_ctx": 3}, "n_ctx is 3"),
        ({"n_ctx": "512"}, "n_ctx is '512'"),
        ({"n_ctx": 512}, "n_ctx is 512, more than the model's window of 256"),
        ({"n_ctx": 16, "max_chunks": 0}, "max_chunks is 0"),
        ({"n_ctx": 16, "max_chunks": 2, "protocol": "rolling"}, "max_chunks belongs"),
        ({"n_ctx": 16, "batch_tokens": 0}, "batch_tokens is 0"),
        ({"text": 5}, "text must be a string"),
    ],
)
def test_bad_arguments(tiny_model: Model, arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        perplexity(tiny_model, **{"text": "the " * 200, **arguments})
