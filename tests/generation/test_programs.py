"""Compiling (J01), donated buffers (J02), state between calls (K02), seeds, and portions of any size."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product, zip_longest

import jax
import numpy as np
import pytest

from minfer_jax.generation import generate, generate_batch, stream
from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import decode, decoder
from minfer_jax.runtime.decoder import Decoder
from minfer_jax.runtime.jitted import score_rows
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.sampling import Sampler
from tests.generation.golden import GOLDEN

GREEDY = Sampler(temperature=0)
CASES = GOLDEN["smol135"]["short"]


def is_golden(model: Model, case: dict, n: int = 8) -> bool:
    return generate(model, case["prompt_ids"], max_tokens=n, sampler=GREEDY).tokens == case["ids"][:n]


def compiled(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Names of the programs compiled since the log was last cleared."""
    found = (re.match(r"Compiling (\S+)", record.getMessage()) for record in caplog.records)
    return [match[1] for match in found if match]


def test_j01_lengths_settings_and_limits_compile_a_bounded_number_of_programs(
    smol_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    jax.clear_caches()
    runtime = Runtime(smol_model, promotion="off")
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for n in range(1, 65):
            generate(runtime, [5] * n, max_tokens=2, sampler=GREEDY)
        generate(runtime, [5], max_tokens=45, sampler=GREEDY, stop_ids=[])
        generate(runtime, [5], max_tokens=2, sampler=Sampler(), stop_ids=[])
        if jax.default_backend() != "cpu":  # there a greedy loop and one that draws are two programs
            for n, sampler in product((2, 8, 45), (GREEDY, Sampler())):
                generate(runtime, [5], max_tokens=n, sampler=sampler, stop_ids=[])
        names = compiled(caplog)
        assert {"jit(forward_rows)", "jit(draw_tokens)", "jit(decode)"} <= set(names)
        # Prompts of one token and five buckets, the first token taken and drawn, the zeros of a cache, decoding: on an
        # accelerator with three trip counts, each for a greedy loop and one that draws.
        assert len(names) <= (11 if jax.default_backend() == "cpu" else 16), names

        caplog.clear()
        for max_tokens in (1, 3, 7, 20):
            generate(runtime, [5] * 9, max_tokens=max_tokens, sampler=GREEDY)
        for sampler in (
            Sampler(seed=1),
            Sampler(temperature=1.3, top_k=7, top_p=0.5, min_p=0.2, seed=2),
            Sampler(repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.1),
            Sampler(logit_bias={5: 3.0, 9: -100.0}),
        ):
            generate(runtime, [7] * 40, max_tokens=3, sampler=sampler, stop=["a", "b"], stop_ids=[3])
        for _ in stream(runtime, [3] * 64, max_tokens=9):
            pass
        assert compiled(caplog) == []


def test_j01_batch_sizes_share_buckets(smol_model: Model, caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(smol_model, promotion="off")
    generate_batch(runtime, [[5, 6]] * 4, max_tokens=2, sampler=GREEDY)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        generate_batch(runtime, [[5, 6, 8]] * 3, max_tokens=3, sampler=GREEDY)
        assert compiled(caplog) == []


def decode_program(model: Model) -> str:
    """The decode program as lowered, from shapes alone."""
    vocab = model.config.vocab_size
    state = decode.start_state([[5]], [4], 1, vocab)
    cache = jax.eval_shape(lambda: init_cache(model.config, 1, 64))
    settings, ends, none = GREEDY.settings(vocab, 0), np.zeros(vocab, bool), np.zeros(1, bool)
    args = model.params, np.int32(2), cache, state, settings, ends, none
    lowered = decode.decode.lower(*args, config=model.config, steps=32, early_exit=True)
    return lowered.as_text()


def test_j01_weights_are_arguments_and_depth_costs_no_program(smol_model: Model) -> None:
    once = decode_program(smol_model)
    assert len(once) < 1_000_000
    config = smol_model.config
    deeper = replace(
        config,
        n_layers=2 * config.n_layers,
        windows=2 * config.windows,
        rope_tables=2 * config.rope_tables,
    )
    (run,) = smol_model.params.runs
    double = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype), run)
    twice = decode_program(replace(smol_model, config=deeper, params=replace(smol_model.params, runs=(double,))))
    assert "60x" in twice and len(twice) < 1.1 * len(once)


def test_j02_a_closed_iterator_leaves_nothing_behind(smol_model: Model) -> None:
    pieces = stream(smol_model, CASES[0]["prompt"], max_tokens=500, sampler=GREEDY)
    first = next(pieces)
    pieces.close()
    assert CASES[0]["text"].startswith(first) and list(pieces) == [] and pieces.result is None
    with stream(smol_model, CASES[0]["prompt"], max_tokens=500) as pieces:
        next(pieces)
    assert list(pieces) == []
    assert is_golden(smol_model, CASES[0])


def test_j02_an_error_in_the_callers_loop(smol_model: Model) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in stream(smol_model, CASES[1]["prompt"], sampler=GREEDY):
            1 / 0  # noqa: B018
    assert is_golden(smol_model, CASES[1])


def test_j02_streams_side_by_side(smol_model: Model) -> None:
    one = stream(smol_model, CASES[0]["prompt"], max_tokens=16, sampler=GREEDY)
    other = stream(smol_model, CASES[2]["prompt"], max_tokens=16, sampler=GREEDY)
    texts = ["", ""]
    for pieces in zip_longest(one, other, fillvalue=""):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert texts == [CASES[0]["text"], CASES[2]["text"]]


def test_j02_debug_nans(smol_model: Model) -> None:
    with jax.debug_nans(True):
        assert is_golden(smol_model, CASES[0], 4)
        generate(smol_model, "Hello", max_tokens=4, sampler=Sampler(seed=3))


def test_k02_the_same_prompt_always_has_the_same_ids(smol_model: Model) -> None:
    case = CASES[4]
    prompt = case["prompt_ids"]
    for _ in range(2):
        assert is_golden(smol_model, case)
    generate(smol_model, [*prompt, 5, 6, 7], max_tokens=3, sampler=GREEDY)
    assert is_golden(smol_model, case)
    generate(smol_model, prompt[:3], max_tokens=3, sampler=GREEDY)
    with stream(smol_model, prompt, max_tokens=100) as pieces:
        next(pieces)
    assert is_golden(smol_model, case)
    grown = generate(smol_model, prompt + case["ids"][:5], max_tokens=3, sampler=GREEDY)
    assert grown.tokens == case["ids"][5:8]


def test_k02_eight_prompts_at_once(smol_model: Model) -> None:
    cases = [CASES[i % len(CASES)] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            assert all(pool.map(lambda case: is_golden(smol_model, case), cases))


def test_seeds_reproduce_the_text_in_any_portions(smol_model: Model) -> None:
    hot = Sampler(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=11)
    text = generate(smol_model, "Once", max_tokens=20, sampler=hot, stop_ids=[])
    again = stream(smol_model, "Once", max_tokens=20, sampler=hot, stop_ids=[])
    assert "".join(again) == text.text and again.result is not None and again.result.tokens == text.tokens
    np.testing.assert_allclose(again.result.token_logprobs, text.token_logprobs, atol=1e-4)  # other trip counts
    rows = generate_batch(smol_model, ["Once", "Once"], max_tokens=20, sampler=hot, stop_ids=[])
    assert rows[0].tokens == text.tokens and rows[1].tokens != text.tokens
    assert generate(smol_model, "Once", max_tokens=20, sampler=replace(hot, seed=12), stop_ids=[]).text != text.text
    unseeded = generate(smol_model, "Once", max_tokens=20, sampler=replace(hot, seed=None), stop_ids=[])
    told = replace(hot, seed=unseeded.seed)
    assert generate(smol_model, "Once", max_tokens=20, sampler=told, stop_ids=[]) == unseeded


def test_the_cache_grows_under_a_running_text(smol_model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = []
    grow = decode.grow_cache
    monkeypatch.setattr(decoder, "grow_cache", lambda cache, length: grown.append(length) or grow(cache, length))
    prompt = CASES[0]["prompt_ids"] * 44  # 220 tokens: the first cache has 256 places
    grown_text = generate(smol_model, prompt, max_tokens=60, sampler=GREEDY, stop_ids=[])
    assert grown == [512]
    # The oracle: the same text as one prompt, each token the likeliest after those before it.
    full = [*prompt, *grown_text.tokens]
    rows = np.arange(len(prompt) - 1, len(full) - 1)
    _, likeliest = score_rows(
        smol_model.params,
        np.array([full], np.int32),
        np.arange(len(full), dtype=np.int32)[None],
        rows.astype(np.int32),
        np.array(grown_text.tokens, np.int32),
        config=smol_model.config,
    )
    assert grown_text.tokens == np.asarray(likeliest).tolist()


def test_a_loop_without_early_exit_gives_the_same_tokens(smol_model: Model) -> None:
    vocab = smol_model.config.vocab_size
    prompts = [CASES[2]["prompt_ids"], CASES[3]["prompt_ids"]]
    ends = np.zeros(vocab, bool)
    ends[2] = True
    outs = []
    for early_exit in (True, False):
        runtime = Runtime(smol_model)
        runtime.early_exit = early_exit
        rows = Decoder(runtime, prompts, [16, 14], GREEDY.settings(vocab, 0), ends)
        tokens = np.concatenate([rows.next(n, np.zeros(2, bool))[0] for n in (1, 2, 4, 8, 8)[: 5 if early_exit else 4]])
        outs.append([[t for t in row if t >= 0] for row in tokens.T.tolist()])
    assert outs[0] == outs[1] == [CASES[2]["ids"], CASES[3]["ids"]]
