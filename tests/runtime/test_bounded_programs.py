"""Cases J01 (compiling again and again) and J02 (donated buffers) through a Runtime."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from minfer_jax.errors import ArgumentError
from minfer_jax.generation import generate, generate_batch
from minfer_jax.model import Model
from minfer_jax.models import init_cache
from minfer_jax.runtime import Runtime
from minfer_jax.runtime.decoder import Decoder
from minfer_jax.runtime.jitted import forward_rows, score_rows
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.promises import rounding
from tests.runtime.runs import places, pure, tokens

GREEDY = Sampler(temperature=0)


def test_j01_lengths_batches_limits_and_samplers(nano: Model, compiled: list[str]) -> None:
    """Prompts of 1 to 64 ids, batches of 1 to 9, limits of 1 to 20: the programs are those of the buckets, and a second
    pass needs none; what a sampler is set to never matters. (Prompts that come three times would be promoted.)"""
    runtime = Runtime(nano, promote_prefill=False, readback="plain")
    runtime.early_exit = True  # on an accelerator, where it is off, loops are three, and two ways of drawing each

    def lengths() -> None:
        for n in range(1, 65):
            generate(runtime, [5] * n, max_tokens=2, sampler=GREEDY)

    def batches() -> None:
        for rows in range(1, 10):
            generate_batch(runtime, [[5 + i, 6] for i in range(rows)], max_tokens=2, sampler=GREEDY)

    def settings() -> None:
        for limit in range(1, 21):
            sampler = Sampler(temperature=limit / 10, top_k=limit, top_p=1 - limit / 50, min_p=limit / 90, seed=limit)
            stops = {"stop": ["a"] * limit, "stop_ids": [limit]}
            generate(runtime, [7] * (40 + limit), max_tokens=limit, sampler=sampler, **stops)

    lengths()
    # Prompts of five buckets, the shortest also for one token, and one loop.
    assert set(runtime.cache_info().programs) == {
        f"{runtime.graph_uid}/{shape}"
        for shape in (
            *(f"prefill b1 t{n} o1 c256" for n in (16, 24, 32, 48, 64)),
            "decode b1 t1 o1 c256 x32",
        )
    }
    assert compiled.count("forward_rows") == 5 and compiled.count("decode") == 1
    batches()
    # Rows of 2, 4, 8 and 16.
    assert compiled.count("forward_rows") == 5 + 4 and compiled.count("decode") == 1 + 4
    settings()  # taking the likeliest of a prompt's logits and drawing from them are two programs
    before = list(compiled)
    for again in (lengths, batches, settings):
        again()
    runtime.settle()
    assert compiled == before
    assert compiled.count("forward_rows") == 5 + 4 and compiled.count("decode") == 1 + 4
    assert len(runtime.cache_info().programs) == 6 + 8


def test_j01_depth_costs_no_program_text(smol_model: Model) -> None:
    """Prefill and scoring; of decoding tests/generation/test_programs.py says the same."""
    config = smol_model.config
    deeper = replace(config, n_layers=60, windows=2 * config.windows, rope_tables=2 * config.rope_tables)
    (run,) = smol_model.params.runs
    double = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype), run)
    sizes = []
    for c, params in ((config, smol_model.params), (deeper, replace(smol_model.params, runs=(double,)))):
        cache = jax.eval_shape(lambda c=c: init_cache(c, 1, 64))
        rows, tail = (tokens(16), places(16)), np.zeros(4, np.int32)
        prefill = forward_rows.lower(params, *rows, cache, tail, config=c, destination=None).as_text()
        score = score_rows.lower(params, *rows, tail, tail, config=c).as_text()
        sizes.append((len(prefill), len(score)))
        assert f"{c.n_layers}x" in prefill and f"{c.n_layers}x" in score
    (prefill_30, score_30), (prefill_60, score_60) = sizes
    assert prefill_60 < 1.1 * prefill_30 and score_60 < 1.1 * score_30


def test_j02_a_cache_is_consumed_and_says_so(nano: Model) -> None:
    runtime = Runtime(nano)
    cache = init_cache(nano.config, 1, 32)
    _, after = runtime.forward(tokens(8)[:, :5], places(5), cache)
    assert cache.k.is_deleted() and cache.v.is_deleted() and after is not None
    with pytest.raises(ArgumentError, match="cache was consumed by an earlier call; go on with the one"):
        runtime.forward(tokens(5), places(5), cache)
    # Nothing is lost: the one that came back goes on.
    logits, _ = runtime.forward(tokens(8)[:, 5:], places(3, start=5), after, copy=True)
    np.testing.assert_allclose(logits, pure(nano, 8)[:, 5:], rtol=0, atol=rounding(nano, 1e-5))


def test_j02_the_cache_stays_where_it_is(nano: Model) -> None:
    """Its memory has the same address after every step, by single steps and by portions."""
    runtime = Runtime(nano)
    cache = init_cache(nano.config, 1, 64)

    def address(cache) -> tuple[int, int]:
        return cache.k.unsafe_buffer_pointer(), cache.v.unsafe_buffer_pointer()

    _, cache = runtime.forward(tokens(5), places(5), cache)
    home = address(cache)
    for i in range(5, 9):
        _, cache = runtime.forward(tokens(1), places(1, start=i), cache)
        assert address(cache) == home

    vocab = nano.config.vocab_size
    decoder = Decoder(runtime, [[5, 6, 7]], [60], GREEDY.settings(vocab, 0), np.zeros(vocab, bool))
    home = address(decoder._cache)
    for _ in range(4):
        decoder.next(8, np.zeros(1, bool))
        assert address(decoder._cache) == home


def test_j02_two_runtimes_in_one_process(nano: Model) -> None:
    """Turn about, by every kind of call; each has its own programs, buffers and counts."""
    shifted = replace(nano, params=jax.tree.map(lambda x: x * 1.5, nano.params))
    pairs = [([1, 2, 3, 4], [5, 6])]

    def work(runtime: Runtime) -> tuple:
        logits, _ = runtime.forward(tokens(5), places(5), copy=True)
        text = generate(runtime, [5, 6, 7], max_tokens=6, sampler=GREEDY, stop_ids=[])
        return logits, text.tokens, score_tokens(runtime, pairs)[0].logprob

    one, other = Runtime(nano, promotion="blocking"), Runtime(shifted, promotion="blocking")
    first = [work(one), work(other)]
    for _ in range(3):
        for runtime, (logits, ids, logprob) in zip((one, other), first, strict=True):
            again = work(runtime)
            np.testing.assert_allclose(again[0], logits, rtol=0, atol=rounding(nano, 1e-4))
            assert again[1] == ids and again[2] == pytest.approx(logprob, abs=rounding(nano, 1e-4))
    np.testing.assert_allclose(first[1][0], pure(shifted, 5), rtol=0, atol=rounding(shifted, 1e-4))
    assert np.abs(first[0][0] - first[1][0]).max() > 1e-2
    assert one.cache_info().programs.keys() == other.cache_info().programs.keys()
    held = [id(program) for runtime in (one, other) for program in runtime._programs.snapshot()[1].values()]
    assert len(set(held)) == len(held)


def test_j02_debug_nans(nano: Model) -> None:
    runtime = Runtime(nano, promotion="blocking")
    with jax.debug_nans(True):
        for _ in range(3):
            logits, cache = runtime.forward(tokens(5), places(5), init_cache(nano.config, 1, 32), copy=True)
            runtime.forward(tokens(1), places(1, start=5), cache)
            score_tokens(runtime, [([1, 2, 3, 4], [5, 6])])
    np.testing.assert_allclose(logits, pure(nano, 5), rtol=0, atol=rounding(nano, 1e-5))
