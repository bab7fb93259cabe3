"""Table B on SmolLM2: bucket against promoted, every switch on and off, and a score in whatever company it is computed.

Native kernels give the same bits in every shape. XLA adds in an order that it chooses for each one, so float32 rounding
is what may differ there: logits reach 43, one part in 2**24 of that is 2.6e-6, and 30 layers multiply it by some tens.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

from minfer_jax.generation import generate, generate_batch
from minfer_jax.model import Model
from minfer_jax.models import KVCache, init_cache
from minfer_jax.native import library
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.buckets import token_bucket
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.generation.golden import GOLDEN
from tests.promises import rounding
from tests.scoring.golden import PERPLEXITY_TEXT

GREEDY = Sampler(temperature=0)
BOUND = 1e-3  # where XLA multiplies, of logits and log-probabilities; golden greedy margins are 0.013 and more
PROMPTS = [GOLDEN["smol135"]["long"][i] for i in (0, 3, 4)]


@pytest.fixture(scope="module")
def text(smol_model: Model) -> list[int]:
    return smol_model.tokenizer.encode(PERPLEXITY_TEXT[:4000])


@pytest.fixture(scope="module")
def report() -> Iterator[Callable[[str, float], None]]:
    """Differences, printed when all are known (``pytest -rP``, or -s)."""
    lines = []
    yield lambda what, difference: lines.append(f"{what}: largest difference {difference:.2g}")
    print("\n".join(lines))


@pytest.mark.parametrize("n", [16, 300, 13])
def test_b_parity_harness_pp16_pp300(
    n: int, smol_model: Model, text: list[int], report: Callable[[str, float], None]
) -> None:
    """Prompts of 16 and 300 tokens (and 13: 16 are their own bucket) into a cache, by the bucket's program and by the
    promoted one: the same likeliest token after every one of them, and the same cache."""
    runtime = Runtime(smol_model, promotion="blocking")
    tokens, positions = np.array([text[:n]]), np.arange(n)[None]
    outs = []
    with runtime.trace() as records:
        for _ in range(3):
            logits, cache = runtime.forward(tokens, positions, init_cache(smol_model.config, 1, 320), copy=True)
            assert cache is not None
            outs.append((logits[0], np.asarray(cache.k), np.asarray(cache.v)))
    assert [f" t{token_bucket(n)} " in r.program for r in records[:2]] == [True] * 2
    assert f" t{n} " in records[2].program and records[2].promoted and not records[1].promoted
    bucket, _, promoted = outs
    difference = max(float(np.abs(a - b).max()) for a, b in zip(bucket, promoted, strict=True))
    report(f"{n} tokens, bucket and promoted", difference)
    top = np.sort(bucket[0], -1)[:, -2:]
    sure = top[:, 1] - top[:, 0] > 2 * difference
    assert sure.mean() > 0.99
    np.testing.assert_array_equal(bucket[0].argmax(-1)[sure], promoted[0].argmax(-1)[sure])
    assert difference <= (0 if token_bucket(n) == n else rounding(smol_model, BOUND))


@pytest.mark.parametrize("n", [16, 300])
def test_b_parity_harness_of_scoring(
    n: int, smol_model: Model, text: list[int], report: Callable[[str, float], None]
) -> None:
    runtime = Runtime(smol_model, promotion="blocking")
    with runtime.trace() as records:
        scores = [score_tokens(runtime, [(text[: n // 2], text[n // 2 : n + 1])])[0] for _ in range(3)]
    assert [r.promoted for r in records] == [False, False, True] and records[2].program != records[1].program
    difference = np.abs(np.subtract(scores[0].token_logprobs, scores[2].token_logprobs)).max()
    report(f"{n} tokens, bucket and promoted", difference)
    assert difference <= rounding(smol_model, BOUND) and scores[0].is_greedy == scores[2].is_greedy


# -- 48 greedy tokens


def greedy(runtime: Runtime, max_tokens: int = 48) -> list[list[int]]:
    """Three prompts in four rows."""
    prompts = [case["prompt_ids"] for case in PROMPTS]
    outs = generate_batch(runtime, prompts, max_tokens=max_tokens, sampler=GREEDY, stop_ids=[])
    return [out.tokens for out in outs]


@pytest.fixture(scope="module")
def plain_48(smol_model: Model) -> list[list[int]]:
    """By buckets, with tail rows, tokens drawn on the device."""
    tokens = greedy(Runtime(smol_model, promote_prefill=False))
    assert [len(row) for row in tokens] == [48] * 3
    for row, case in zip(tokens, PROMPTS, strict=True):
        assert row[:24] == case["greedy_ids"]
    return tokens


class EveryRow(Runtime):
    """A1 off: the whole prompt goes through the last layer's FFN and the head."""

    def prefill(self, tokens, positions, cache: KVCache, tail_ids) -> tuple[jax.Array, KVCache]:
        logits, cache = super().prefill(tokens, positions, cache, None)
        return (logits if tail_ids is None else logits[tail_ids]), cache


def test_b_greedy_identity_48_tokens_tail_rows(smol_model: Model, plain_48: list[list[int]]) -> None:
    runtime = EveryRow(smol_model)
    assert greedy(runtime) == plain_48
    assert any("prefill b4 t11 o44 " in shape for shape in runtime.cache_info().shapes)


def unchanged(_: list[int], logits: np.ndarray) -> np.ndarray:
    return logits


@pytest.mark.parametrize("route", ["ffi", "pinned_host", "plain", "off"])
def test_b_greedy_identity_48_tokens_readback(
    route, smol_model: Model, plain_48: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of each step come to the host, by each route, and with the switch off."""
    if route == "ffi" and library() is None:
        pytest.skip("the native library is not built")
    monkeypatch.delenv("MINFER_NO_PINNED_READBACK", raising=False)
    if route == "off":
        monkeypatch.setenv("MINFER_NO_PINNED_READBACK", "1")
    runtime = Runtime(smol_model, readback=None if route == "off" else route)
    more = {"max_tokens": 48, "sampler": GREEDY, "stop_ids": [], "logits_processors": [unchanged]}
    assert generate(runtime, PROMPTS[0]["prompt_ids"], **more).tokens == plain_48[0]
    # The plain route is not named: its logits are those of a program that leaves them where they are.
    last = {name.split()[-1] for name in runtime.cache_info().programs}
    assert last == ({route} if route in ("ffi", "pinned_host") else {"c256"})


def test_b_greedy_identity_48_tokens_promotion(smol_model: Model, plain_48: list[list[int]]) -> None:
    runtime = Runtime(smol_model, promotion="blocking")
    runtime.early_exit = True  # one trip count
    for n in (2, 2, 48):
        assert greedy(runtime, n) == [row[:n] for row in plain_48]
    shapes = runtime.cache_info().shapes.values()
    assert len(shapes) == 2 and all(shape.promoted and shape.shape != shape.bucket for shape in shapes)


# -- one text in any company


def test_a_score_is_the_same_in_any_company(
    smol_model: Model, text: list[int], report: Callable[[str, float], None]
) -> None:
    """Alone, in a batch of 16 with longer texts, in another bucket, and promoted."""
    pair = (text[:9], text[9:21])
    longer = [(text[i : i + 30], text[i + 30 : i + 41]) for i in range(50, 65)]
    runtime = Runtime(smol_model, promotion="blocking")

    def logprobs(pairs: list) -> np.ndarray:
        return np.array(score_tokens(runtime, pairs)[0].token_logprobs)

    with runtime.trace() as records:
        alone = logprobs([pair])
        others = {"batch": logprobs([pair, *longer]), "bucket": logprobs([pair, (text[:50], text[50:61])])}
        logprobs([pair])
        others["promoted"] = logprobs([pair])
    programs = [record.program for record in records]
    assert programs[0] == programs[3] and len(set(programs)) == len(programs) - 1 == 4
    for company, values in others.items():
        difference = float(np.abs(values - alone).max())
        report(f"alone and {company}", difference)
        assert difference <= rounding(smol_model, 1e-4), company
