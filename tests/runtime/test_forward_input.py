"""Bad input of a Runtime: one line that names the argument, and nothing compiled or counted for it."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.errors import ArgumentError, ContextLengthError, MinferError
from minfer_jax.generation import generate
from minfer_jax.generation.arguments import LogitsProcessor
from minfer_jax.model import Model
from minfer_jax.models import KVCache, init_cache
from minfer_jax.runtime import Runtime
from minfer_jax.sampling import Sampler
from tests.promises import rounding
from tests.runtime.runs import places, pure, run

N_CTX = 256
IDS, PLACES = np.ones((1, 4), np.int64), places(4).astype(np.int64)

BAD_RUNS: dict[str, tuple[tuple, str]] = {
    "tokens of one dimension": ((IDS[0], PLACES[0]), r"tokens has shape \(4,\)"),
    "tokens that are floats": ((IDS * 1.0, PLACES), "tokens has shape .* float64; give integers"),
    "tokens that are bools": ((IDS > 0, PLACES), "tokens has shape .* bool; give integers"),
    "no tokens": ((IDS[:, :0], PLACES[:, :0]), r"tokens has shape \(1, 0\)"),
    "no rows": ((IDS[:0], PLACES[:0]), r"tokens has shape \(0, 4\)"),
    "tokens of different lengths": (([[1, 2], [3]], [[0, 1], [0]]), "tokens has .* give integers"),
    "None": ((None, PLACES), "tokens has .* give integers"),
    "another number of positions": ((IDS, PLACES[:, :3]), r"positions has shape \(1, 3\) and tokens \(1, 4\)"),
    "another number of rows": ((IDS, places(4, 2)), r"positions has shape \(2, 4\) and tokens \(1, 4\)"),
    "an id of the vocabulary's size": ((IDS * 264, PLACES), "tokens holds 264; give numbers from 0 to 263"),
    "an id below 0": ((-IDS, PLACES), "tokens holds -1; give numbers from 0 to 263"),
    "an id beyond 32 bits": ((IDS + 2**32, PLACES), "tokens holds 4294967297; give"),
    "a position below -1": ((IDS, PLACES - 2), "positions holds -2; give numbers from -1 to 255"),
    "a position below 32 bits": ((IDS, PLACES - 2**32), "positions holds -4294967296; give"),
    "a row of the logits too many": ((IDS, PLACES, None, [4]), "tail_ids holds 4; give numbers from 0 to 3"),
    "a row below 0": ((IDS, PLACES, None, [-1]), "tail_ids holds -1; give numbers from 0 to 3"),
    "no row": ((IDS, PLACES, None, []), r"tail_ids has shape \(0,\)"),
    "tail_ids of two dimensions": ((IDS, PLACES, None, [[1]]), r"tail_ids has shape \(1, 1\)"),
    "a cache that is none": ((IDS, PLACES, (1, 2)), r"cache is \(1, 2\)"),
}


@pytest.mark.parametrize(("call", "message"), BAD_RUNS.values(), ids=BAD_RUNS.keys())
def test_bad_input_of_forward(call: tuple, message: str, nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano)
    with pytest.raises(ArgumentError, match=message) as caught:
        runtime.forward(*call)
    assert "\n" not in str(caught.value)
    assert compiled == [] and runtime.cache_info().shapes == {}


@pytest.mark.parametrize(
    ("where", "length", "numbers"),
    [
        (places(4, start=14), 16, (18, 16)),
        (np.array([[0, 1, 2**32, 3]]), 16, (2**32 + 1, 16)),
        (places(4, start=N_CTX - 3), None, (N_CTX + 1, N_CTX)),
        (places(17), 16, (17, 16)),
        (np.where(places(300) < 9, places(300), -1), None, (300, N_CTX)),
    ],
)
def test_positions_beyond_the_cache_name_both_numbers(
    where: np.ndarray, length: int | None, numbers: tuple[int, int], nano: Model
) -> None:
    runtime = Runtime(nano)
    cache = None if length is None else init_cache(nano.config, 1, length)
    what = "context window" if cache is None else "cache"
    with pytest.raises(ContextLengthError, match=f"{numbers[0]} positions do not fit the {what} of {numbers[1]};"):
        runtime.forward(np.ones_like(where), where, cache)


def test_a_cache_that_does_not_fit(nano: Model) -> None:
    runtime = Runtime(nano)
    with pytest.raises(ArgumentError, match="tokens has 1 rows and the cache 2"):
        runtime.forward(IDS, PLACES, init_cache(nano.config, 2, 16))
    deeper = init_cache(replace(nano.config, n_layers=2), 1, 16)
    with pytest.raises(ArgumentError, match=r"cache has shape \(2, 1, 1, 16, 16\), of another model"):
        runtime.forward(IDS, PLACES, deeper)


def test_keys_and_values_that_do_not_belong_together(nano: Model) -> None:
    """None of them is let in, so that none decides what a program is compiled for."""
    runtime = Runtime(nano, promotion="blocking")
    good, half, two = (init_cache(nano.config, *how) for how in ((1, 16), (1, 16, jnp.bfloat16), (2, 16)))
    for v in (half.v, two.v, np.asarray(good.v)):
        with pytest.raises(ArgumentError, match="cache has keys and values that do not belong together"):
            runtime.forward(IDS, PLACES, KVCache(good.k, v))
    for k in (good.k.astype(jnp.int32), good.k.astype(jnp.float16), good.k[0]):
        with pytest.raises(ArgumentError, match="cache holds (int32|float16|float32) of shape"):
            runtime.forward(IDS, PLACES, KVCache(k, k))
    used = init_cache(nano.config, 1, 16)
    used.v.delete()
    with pytest.raises(ArgumentError, match="cache was consumed"):
        runtime.forward(IDS, PLACES, used)
    for _ in range(3):
        run(runtime, 4, cache=init_cache(nano.config, 1, 16))
    (info,) = runtime.cache_info().shapes.values()
    assert info.promoted and info.runs == 3


def test_a_cache_of_either_dtype(nano: Model) -> None:
    """One after the other, at one and the same shape."""
    runtime = Runtime(nano, promotion="blocking")
    outs = {dtype: [] for dtype in (jnp.float32, jnp.bfloat16)}
    for _ in range(4):
        for dtype, logits in outs.items():
            logits.append(run(runtime, 5, cache=init_cache(nano.config, 1, 16, dtype)))
    exact, rounded = (np.array(logits) for logits in outs.values())
    np.testing.assert_allclose(exact, exact[:1].repeat(4, 0), rtol=0, atol=rounding(nano, 1e-5))
    np.testing.assert_allclose(rounded, rounded[:1].repeat(4, 0), rtol=0, atol=rounding(nano, 1e-5))
    assert 1e-5 < np.abs(exact - rounded).max() < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"promotion": "never"}, '"background", "blocking" or "off"'),
        ({"promotion": None}, '"background", "blocking" or "off"'),
        ({"promotion": True}, '"background", "blocking" or "off"'),
        ({"readback": "fast"}, "ffi, pinned_host or plain"),
        ({"readback": ""}, "ffi, pinned_host or plain"),
        ({"max_programs": 0}, "max_programs is 0; give an integer of at least 1"),
        ({"max_programs": 2.0}, "max_programs is 2.0"),
        ({"max_program_bytes": -1}, "max_program_bytes is -1; give an integer of at least 0"),
    ],
)
def test_bad_options_of_a_runtime(options: dict, message: str, nano: Model) -> None:
    with pytest.raises(MinferError, match=message):
        Runtime(nano, **options)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(nano: Model, compiled: list[str]) -> None:
    runtime = Runtime(nano)
    with pytest.raises(ContextLengthError, match=f"prompt: 300 tokens in a context window of {N_CTX} "):
        generate(runtime, [5] * 300)
    with pytest.raises(ContextLengthError, match=f"prompt: {N_CTX} tokens in a context window of {N_CTX} "):
        generate(runtime, [5] * N_CTX)
    assert compiled == []


def test_an_error_of_the_callers_function_leaves_the_runtime_sound(nano: Model) -> None:
    runtime = Runtime(nano)
    sampler = Sampler(temperature=0)
    wanted = generate(runtime, [5, 6, 7], max_tokens=4, stop_ids=[], sampler=sampler)

    def breaks(at: int) -> LogitsProcessor:
        def process(ids: list[int], logits: np.ndarray) -> np.ndarray:
            if len(ids) == at:
                raise ZeroDivisionError
            return logits

        return process

    for at in (3, 5):
        with pytest.raises(ZeroDivisionError):
            generate(runtime, [5, 6, 7], max_tokens=8, stop_ids=[], sampler=sampler, logits_processors=[breaks(at)])
        np.testing.assert_allclose(run(runtime, 5), pure(nano, 5), rtol=0, atol=rounding(nano, 1e-5))
        assert generate(runtime, [5, 6, 7], max_tokens=4, stop_ids=[], sampler=sampler).tokens == wanted.tokens
