"""Texts that begin alike: what is read once, and that no bit of a score changes (native kernels only)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minfer_jax as mj
from minfer_jax.model import Model
from minfer_jax.runtime.buckets import Batch, pack_sequences
from minfer_jax.runtime.keys import Shape
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.scoring import multiple_choice_batch, score_tokens
from tests.native.built import needs_library
from tests.scoring.golden import PERPLEXITY_TEXT

Pairs = list[tuple[list[int], list[int]]]


@st.composite
def families(draw: st.DrawFn, vocab: int = 4, longest: int = 90) -> Pairs:
    """Pairs that are cut out of few texts and go on in any way: nested prefixes, duplicates, one-token contexts and
    continuations."""
    ids = st.integers(0, vocab - 1)
    pairs: Pairs = []
    trunks = [[0]]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.sampled_from(trunks))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        more = rng.integers(0, vocab, draw(st.integers(0, longest))).tolist()
        trunks.append([*start[: draw(st.integers(1, len(start)))], *more])
    for _ in range(draw(st.integers(1, 14))):
        trunk = draw(st.sampled_from(trunks))
        cut = draw(st.one_of(st.just(len(trunk)), st.integers(1, len(trunk))))
        pairs.append((trunk[:cut], draw(st.lists(ids, min_size=1, max_size=5))))
    return pairs


def joined(pairs: Pairs) -> tuple[list[list[int]], list[int]]:
    return [[*context, *continuation] for context, continuation in pairs], [len(pair[1]) for pair in pairs]


def check_readable(batch: Batch, shape: Shape, sequences: list[list[int]], n_scored: list[int]) -> None:
    """Every target is scored where a token stands that sees its own text, whole, in order and nothing else, each token
    of it at its position and a multiple of 16 places behind that."""
    filled = batch.fill(shape)
    at_place = np.arange(shape.slots) if filled.tail_ids is None else filled.tail_ids
    places = np.arange(shape.tokens)
    for index, here in batch.results(shape):
        ids, n = sequences[index], n_scored[index]
        assert filled.targets[here].tolist() == ids[-n:]
        for i, at in enumerate(at_place[here], len(ids) - n):
            row, place = divmod(at, shape.tokens)
            sees = (filled.positions[row] >= 0) & (places <= place) & (place < filled.until[row])
            assert filled.tokens[row][sees].tolist() == ids[:i]
            assert filled.positions[row][sees].tolist() == list(range(i))
            assert not ((places[sees] - np.arange(i)) % 16).any()


@settings(deadline=None)
@given(families(), st.sampled_from([1, 48, 130, 4096]))
def test_every_text_is_seen_as_if_it_were_alone(pairs: Pairs, batch_tokens: int) -> None:
    sequences, n_scored = joined(pairs)
    found = []
    for batch in pack_sequences(sequences, n_scored, batch_tokens, share=True):
        assert batch.bucket.slots <= max(batch_tokens, batch.bucket.tokens)
        assert batch.bucket.tokens <= batch_tokens or all(len(row) == 1 for row in batch.rows)
        for shape in batch.bucket, batch.exact:
            check_readable(batch, shape, sequences, n_scored)
        found += [index for index, _ in batch.results(batch.bucket)]
    assert sorted(found) == list(range(len(pairs)))


def tokens_read(sequences: list[list[int]], n_scored: list[int], batch_tokens: int = 4096) -> int:
    batches = pack_sequences(sequences, n_scored, batch_tokens, share=True)
    return sum(int((batch.fill(batch.bucket).positions >= 0).sum()) for batch in batches)


def test_how_many_tokens_are_read() -> None:
    rng = np.random.default_rng(0)

    def some(n: int) -> list[int]:
        return rng.integers(0, 1000, n).tolist()

    # The last id of a context is read for each choice, whose first id it foretells; the choice's own last id is not.
    question = some(40)
    assert tokens_read([[*question, *some(3)] for _ in range(4)], [3] * 4) == 39 + 4 * 3
    assert tokens_read([[*question, i] for i in range(4)], [1] * 4) == 39 + 4
    header, questions = some(100), [some(30) for _ in range(5)]
    both = [[*header, *question, *some(2)] for question in questions for _ in range(4)]
    assert tokens_read(both, [2] * 20) == 100 + 5 * (29 + 4 * 2)
    # Where a row is full the next begins with all of it: 192 places for 131 and two branches of 32 or more.
    assert tokens_read(both, [2] * 20, 192) > 100 + 5 * (29 + 4 * 2)
    # Not worth it, and impossible: the other's scored ids.
    assert tokens_read([[*question[:15], *some(5)] for _ in range(2)], [3] * 2) == 2 * 19
    assert tokens_read([question] * 3, [39] * 3) == 3 * 39


def compare(model: Model, pairs: Pairs, alone: bool = True) -> None:
    """Scores together, one at a time and together without sharing: ==."""
    together = score_tokens(model, pairs)
    if alone:
        assert together == [score_tokens(model, [pair])[0] for pair in pairs]
    assert together == score_tokens(Apart(model), pairs)


class Apart(Runtime):
    """A runtime that shares nothing, and reads rows by the rule for one text."""

    can_share = False  # pyright: ignore[reportAssignmentType]


NAMES = "llama qwen2 qwen3 gemma2 gemma3 gemma3-27b phi3 phi3-longrope quant-k quant-gemma3".split()


@needs_library
@pytest.mark.parametrize("name", NAMES)
def test_the_same_bits(name: str, tiny_gguf: Callable[[str], Path]) -> None:
    model = mj.load(tiny_gguf(name), implementation="ffi")
    rng = np.random.default_rng(1)

    def some(n: int) -> list[int]:
        return rng.integers(0, model.config.vocab_size, n).tolist()

    header = some(37)
    contexts = [[*header, *some(n)] for n in (1, 20, 43, 70)]
    pairs = [(context, some(n)) for context in contexts for n in (1, 2, 5, 1)]
    pairs += [(header, some(3)), (header[:1], some(60)), (some(30), some(2)), pairs[5], ([*contexts[2], 7], some(1))]
    sequences, n_scored = joined(pairs)
    assert tokens_read(sequences, n_scored) < sum(map(len, sequences)) / 2
    compare(model, pairs)


@needs_library
def test_the_same_bits_of_any_family(tiny_gguf: Callable[[str], Path]) -> None:
    model = mj.load(tiny_gguf("gemma3"), implementation="ffi", n_ctx=64)  # longer contexts are cut, as scoring does

    @settings(max_examples=15, deadline=None)
    @given(families(vocab=200, longest=60))
    def check(pairs: Pairs) -> None:
        compare(model, pairs, alone=False)

    check()


@needs_library
def test_the_same_bits_of_a_real_model(smol_model: Model) -> None:
    ids = smol_model.tokenizer.encode(PERPLEXITY_TEXT[:4000])
    contexts = [ids[:60], [*ids[:60], *ids[200:230]], ids[300:340]]
    compare(smol_model, [(context, ids[i : i + n]) for context in contexts for i, n in ((400, 1), (500, 3), (600, 4))])


@needs_library
def test_choices_are_read_once(tiny_gguf: Callable[[str], Path]) -> None:
    """By what the programs were given: a row of 49 + 2 + 3 tokens and eight more branches of 16 places at most, or nine
    rows."""
    model = mj.load(tiny_gguf("llama"), implementation="ffi")
    questions = [("The question is how often this text is read, number " + n, [" aa", " b", " c"]) for n in "123"]
    results, programs = [], []
    for runtime in Runtime(model, promotion="off"), Apart(model, promotion="off"):
        with runtime.trace() as records:
            results.append(multiple_choice_batch(runtime, questions))
        programs.append([record.program for record in records])
    assert programs == [["score b1 t192 o24 c0"], ["score b16 t64 o64 c0"]]
    assert results[0] == results[1]


def test_others_do_not_share(tiny_gguf: Callable[[str], Path]) -> None:
    runtime = Runtime(mj.load(tiny_gguf("llama"), implementation="dense"), promotion="off")
    with runtime.trace() as records:
        score_tokens(runtime, [(list(range(50)), [n]) for n in range(4)])
    assert [record.program for record in records] == ["score b4 t64 o16 c0"]
    row = np.zeros((1, 8), np.int32)
    with pytest.raises(mj.ArgumentError, match="until is for implementation 'ffi'"):
        mj.hidden_states(runtime.params, runtime.config, row, row, until=row)
