"""Batches: what is packed, how many shapes there are, and that a score does not depend on its neighbours (K01)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer_jax.model import Model
from minfer_jax.runtime.buckets import Batch, pack_sequences
from minfer_jax.runtime.jitted import score_rows
from minfer_jax.runtime.keys import Shape
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.scoring import score_tokens
from tests.promises import LARGEST, rounding
from tests.scoring.golden import GOLDEN, LIMIT, PERPLEXITY_TEXT
from tests.scoring.models import MODELS


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    lengths = draw(st.lists(st.one_of(st.integers(2, 20), st.integers(2, 700)), min_size=1, max_size=40))
    n_scored = [draw(st.integers(1, n - 1)) for n in lengths]
    return [[1000 * i + j for j in range(n)] for i, n in enumerate(lengths)], n_scored


@settings(deadline=None)
@given(requests(), st.sampled_from([1, 100, 512, 4096]))
def test_every_scored_id_is_in_one_place(work: tuple[list[list[int]], list[int]], batch_tokens: int) -> None:
    sequences, n_scored = work
    seen = []
    for batch in pack_sequences(sequences, n_scored, batch_tokens):
        assert batch.bucket.slots <= max(batch_tokens, batch.bucket.tokens)
        assert batch.bucket.batch & (batch.bucket.batch - 1) == 0 and batch.bucket.batch < 2 * len(batch.rows)
        seen += [index for index, _ in batch.results(batch.bucket)]
        check_filled(batch, batch.bucket)
        check_filled(batch, batch.exact)
    assert sorted(seen) == list(range(len(sequences)))


def check_filled(batch: Batch, shape: Shape) -> None:
    filled = batch.fill(shape)
    assert filled.tokens.shape == filled.positions.shape == (shape.batch, shape.tokens)
    used = filled.positions >= 0
    tail_ids = np.arange(shape.slots) if filled.tail_ids is None else filled.tail_ids
    assert len(tail_ids) == len(filled.targets) == shape.n_out <= shape.slots
    assert (filled.tail_ids is None) == (shape.n_out == shape.slots)
    for row, ((member,), (_, here)) in enumerate(zip(batch.rows, batch.results(shape), strict=True)):
        ids, n = member.ids, member.n_scored
        assert filled.tokens[row][used[row]].tolist() == ids[:-1]
        assert filled.positions[row][used[row]].tolist() == list(range(len(ids) - 1))
        assert filled.targets[here].tolist() == ids[-n:]
        assert filled.tokens.ravel()[tail_ids[here]].tolist() == ids[-n - 1 : -1]


def test_only_a_call_that_is_one_batch_has_a_shape_of_its_own() -> None:
    (alone,) = pack_sequences([[0] * 301, [0] * 250, [0] * 290], [1, 2, 3])
    assert (alone.exact.batch, alone.exact.tokens, alone.exact.n_out) == (3, 300, 6)
    assert (alone.bucket.batch, alone.bucket.tokens) == (4, 320)
    assert all(batch.exact == batch.bucket for batch in pack_sequences([[0] * 301] * 40, [1] * 40))


def test_few_shapes_for_many_lengths() -> None:
    def shapes(seed: int) -> set[tuple[int, ...]]:
        rng = np.random.default_rng(seed)
        lengths = rng.integers(5, 300, 200)
        n_scored = rng.integers(1, 12, 200).clip(max=lengths - 1).tolist()
        batches = list(pack_sequences([[0] * n for n in lengths], n_scored))
        # Sorting keeps padding low: not more than a third of all slots, the last batch apart.
        slots = sum(batch.bucket.slots for batch in batches[:-1])
        assert sum(member.end for batch in batches[:-1] for (member,) in batch.rows) > slots * 2 / 3
        return {batch.bucket for batch in batches}

    assert len(shapes(0)) <= 8
    assert len(set.union(*map(shapes, range(50)))) <= 40


def test_j01_a_second_pass_compiles_nothing(tiny_model: Model) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(2, 250, 200).tolist()
    pairs = [(rng.integers(0, 200, n).tolist(), rng.integers(0, 200, 1 + n % 5).tolist()) for n in lengths]
    runtime = Runtime(tiny_model)
    score_tokens(runtime, pairs)
    programs = runtime.cache_info().programs
    assert len(programs) <= 10
    for _ in range(3):
        score_tokens(runtime, pairs[::-1])
    runtime.settle()
    assert runtime.cache_info().programs.keys() == programs.keys()


def rows_of(sequences: list[list[int]], width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One batch of all of them: tokens, positions [B, width], and the last place and target of each."""
    tokens = np.zeros((len(sequences), width), np.int32)
    positions = np.full_like(tokens, -1)
    for row, ids in enumerate(sequences):
        tokens[row, : len(ids) - 1] = ids[:-1]
        positions[row, : len(ids) - 1] = np.arange(len(ids) - 1)
    ends = np.array([row * width + len(ids) - 2 for row, ids in enumerate(sequences)], np.int32)
    return tokens, positions, ends, np.array([ids[-1] for ids in sequences], np.int32)


@pytest.mark.parametrize("name", MODELS)
def test_k01_batch_and_alone(model: Model, name: str) -> None:
    text = model.tokenizer.encode(PERPLEXITY_TEXT[:4000])
    golden = next(case for case in GOLDEN[name]["score_pairs"] if len(case["continuation_ids"]) == 1)
    ids = [*(text[: n + 1] for n in (1, 5, 17, 600)), golden["whole_ids"]]
    alone = [score_tokens(model, [(s[:-1], s[-1:])])[0].logprob for s in ids]
    assert alone[-1] == pytest.approx(golden["sum_logprob"], abs=LARGEST)

    tokens, positions, ends, targets = rows_of(ids, 608)
    clean = score_rows(model.params, tokens, positions, ends, targets, config=model.config)
    np.testing.assert_allclose(clean[0], alone, rtol=0, atol=rounding(model, LIMIT[name]))
    # What stands in the padding changes nothing at all.
    noise = np.random.default_rng(0).integers(0, model.config.vocab_size, tokens.shape, np.int32)
    tokens = np.where(positions < 0, noise, tokens)
    noisy = score_rows(model.params, tokens, positions, ends, targets, config=model.config)
    np.testing.assert_array_equal(clean[0], noisy[0])
    np.testing.assert_array_equal(clean[1], noisy[1])


def test_k01_33_pairs_in_two_orders_and_alone(smol_model: Model) -> None:
    text = smol_model.tokenizer.encode(PERPLEXITY_TEXT[:4000])
    pairs = [(text[i : i + 1 + 7 * i % 60], text[i + 70 : i + 72 + i % 3]) for i in range(32)]
    pairs.append(pairs[3])  # the same one twice
    forward, backward = score_tokens(smol_model, pairs), score_tokens(smol_model, pairs[::-1])[::-1]
    small = score_tokens(smol_model, pairs[:8], batch_tokens=1)
    bound = rounding(smol_model, 0.001)
    for i, (one, other) in enumerate(zip(forward, backward, strict=True)):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=bound)
        if i < len(small):
            assert one.token_logprobs == pytest.approx(small[i].token_logprobs, abs=bound)
    assert forward[3].token_logprobs == pytest.approx(forward[-1].token_logprobs, abs=bound)
