"""With native kernels a token's numbers have the same bits whatever it is computed with: other texts, padding, buckets
and promoted shapes, chunks, the length of a cache, the number of threads."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer_jax.generation import generate_batch
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models import forward, init_cache
from minfer_jax.runtime import Runtime
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.native.built import needs_library
from tests.native.matmul import assert_same_bits

pytestmark = needs_library

# One of each architecture, of each way to scale positions, and of each mixture of formats.
NAMES = "llama-yarn mistral qwen2 qwen3 gemma2 gemma3-linear phi3-longrope quant-legacy quant-k".split()
MODELS = [*((name, "default") for name in NAMES), ("quant-legacy", "exact")]
LENGTH = 37  # of a text
GREEDY = Sampler(temperature=0)

load_native = partial(load, implementation="ffi")
Load = Callable[[str, str], Model]


@pytest.fixture(scope="module")
def loaded(tiny_gguf) -> Load:
    """A tiny model by its name and precision."""
    return lambda name, precision="default": load_native(tiny_gguf(name), precision=precision)


def text(model: Model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, min(200, model.config.vocab_size), n).tolist()


# -- logits


def logits(model: Model, tokens: np.ndarray, positions: np.ndarray, cache=None):
    """[B, T, vocab], and the cache."""
    out, cache = forward(model.params, model.config, tokens.astype(np.int32), positions.astype(np.int32), cache)
    return np.asarray(out), cache


@pytest.mark.parametrize("name, precision", MODELS)
def test_logits_in_a_batch_in_padding_and_in_chunks(name: str, precision: str, loaded: Load):
    model = loaded(name, precision)
    ids = np.array(text(model, LENGTH))
    alone = logits(model, ids[None], np.arange(LENGTH)[None])[0][0]

    tokens, positions = np.zeros((3, 50)), np.full((3, 50), -1)
    tokens[1, 7 : 7 + LENGTH], positions[1, 7 : 7 + LENGTH] = ids, np.arange(LENGTH)
    tokens[2], positions[2] = text(model, 50, seed=1), np.arange(50)
    assert_same_bits(logits(model, tokens, positions)[0][1, 7 : 7 + LENGTH], alone)

    cache = init_cache(model.config, 2, 64)
    for begin, end in pairwise([0, 1, 2, 16, 33, LENGTH]):
        rows = np.array([text(model, end - begin, seed=2), ids[begin:end]])
        out, cache = logits(model, rows, np.tile(np.arange(begin, end), (2, 1)), cache)
        assert_same_bits(out[1], alone[begin:end])


# -- scores


def logprobs(model: Model, pairs: list[tuple[list[int], list[int]]], **more) -> list[np.ndarray]:
    return [np.array(score.token_logprobs, np.float32) for score in score_tokens(model, pairs, **more)]


@pytest.mark.parametrize("name, precision", MODELS)
def test_scores_alone_together_and_promoted(name: str, precision: str, loaded: Load):
    model = loaded(name, precision)
    ids = text(model, LENGTH)
    whole, part = (ids[:5], ids[5:]), (ids[:5], ids[5:11])
    expected = logprobs(model, [whole])[0]
    others = [(text(model, n, seed=n), text(model, 3, seed=n)) for n in (1, 9, 30, 60)]
    together = logprobs(model, [*others[:2], part, *others[2:], whole])
    assert_same_bits(together[2], expected[:6])
    assert_same_bits(together[-1], expected)
    assert_same_bits(logprobs(model, [part, *others, whole], batch_tokens=64)[-1], expected)
    runtime = Runtime(model, promotion="blocking")
    with runtime.trace() as records:
        for _ in range(3):
            assert_same_bits(logprobs(runtime, [whole])[0], expected)
    assert [record.promoted for record in records] == [False, False, True]


sequences = st.tuples(st.integers(2, 70), st.integers(0, 9))
companies = st.lists(sequences, max_size=7)


def check_company(model: Model, subject: tuple[int, int], company: list[tuple[int, int]], at: int, scored: int):
    """A text's score among others, which may begin as it does."""
    pairs = [(text(model, n, seed)[:1], text(model, n, seed)[1:]) for n, seed in company]
    ids = text(model, *subject)
    scored = 1 + scored % (len(ids) - 1)
    pair = (ids[:-scored], ids[-scored:])
    at %= len(pairs) + 1
    assert_same_bits(logprobs(model, [*pairs[:at], pair, *pairs[at:]])[at], logprobs(model, [pair])[0])


@pytest.mark.parametrize("name, precision", [("gemma2", "default"), ("quant-k", "default"), ("quant-legacy", "exact")])
@settings(max_examples=15, deadline=None)
@given(subject=sequences, company=companies, at=st.integers(0, 9), scored=st.integers(0, 99))
def test_scores_in_any_company(name: str, precision: str, loaded: Load, subject, company, at: int, scored: int):
    check_company(loaded(name, precision), subject, company, at, scored)


@settings(max_examples=8, deadline=None)
@given(subject=sequences, company=companies, at=st.integers(0, 9), scored=st.integers(0, 99))
def test_scores_of_smollm2_in_any_company(smol_model: Model, subject, company, at: int, scored: int):
    assert smol_model.provenance["implementation"] == "ffi"
    check_company(smol_model, subject, company, at, scored)


# -- generated texts


@pytest.mark.parametrize("name, precision", MODELS)
def test_greedy_texts(name: str, precision: str, loaded: Load):
    """Alone, in batches of several sizes, promoted, and scored as if they had been given."""
    model = loaded(name, precision)
    check_greedy(model, [text(model, n, seed=n) for n in (1, 7, 20, 33)])


def test_greedy_texts_of_smollm2(smol_model: Model):
    check_greedy(smol_model, [text(smol_model, n, seed=n) for n in (3, 40)])


def check_greedy(model: Model, prompts: list[list[int]]):
    runtime = Runtime(model, promotion="blocking")
    draw = partial(generate_batch, runtime, max_tokens=9, sampler=GREEDY, stop_ids=[])
    together = draw(prompts)
    for _ in range(3):
        for prompt, expected in zip(prompts, together, strict=True):
            assert draw([prompt])[0].token_logprobs == expected.token_logprobs
            assert draw([prompt])[0].tokens == expected.tokens
        assert draw(prompts[::-1])[0].token_logprobs == together[-1].token_logprobs
    given_texts = logprobs(model, [(prompt, out.tokens) for prompt, out in zip(prompts, together, strict=True)])
    for scored, out in zip(given_texts, together, strict=True):
        assert_same_bits(scored, np.array(out.token_logprobs, np.float32))


# -- threads


def digest(paths: list[Path]) -> str:
    """Of scores and greedy texts."""
    hashed = hashlib.sha256()
    for path in paths:
        model = load_native(path)
        pairs = [(text(model, n, seed=n), text(model, 5, seed=n)) for n in (1, 30, 60)]
        for row in logprobs(model, pairs):
            hashed.update(row.tobytes())
        for out in generate_batch(model, [pair[0] for pair in pairs], max_tokens=9, sampler=GREEDY, stop_ids=[]):
            hashed.update(np.array([out.tokens, out.token_logprobs]).tobytes())
    return hashed.hexdigest()


def test_threads(tiny_gguf, smol135: Path):
    """NPROC is how many threads XLA takes."""
    paths = [tiny_gguf("gemma3-linear"), tiny_gguf("quant-k"), smol135]
    program = "import sys; from tests.models.test_invariance import digest; print(digest(sys.argv[1:]))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program, *map(str, paths)],
            env=os.environ | {"NPROC": n},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for n in ("1", "5")
    }
    assert found == {digest(paths)}
