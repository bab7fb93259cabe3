"""Case E04: the sampler's arithmetic against numpy in float64, and its refusals."""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from minfer_jax.errors import ArgumentError
from minfer_jax.sampling import (
    Sampler,
    adjust_logits,
    argmax,
    fresh_seed,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    likeliest,
    sample,
)

V = 97
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def adjusted(sampler: Sampler, logits: list[float], prompt: set[int] = frozenset(), output: tuple[int, ...] = ()):
    """adjust_logits for one row."""
    n = len(logits)
    in_prompt = np.isin(np.arange(n), list(prompt))[None]
    counts = np.bincount(np.array(output, int), minlength=n)[None].astype(np.int32)
    z = adjust_logits(jnp.array([logits], jnp.float32), sampler.settings(n, 0), in_prompt, counts)
    return np.asarray(z[0])


def draws(sampler: Sampler, logits: np.ndarray, n: int) -> np.ndarray:
    """n tokens drawn from the same logits [V], as n rows."""
    keys = jax.random.split(jax.random.key(7), n)
    z = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (n, len(logits)))
    return np.asarray(jax.jit(sample)(z, sampler.settings(len(logits), 0), keys))


def kept_by_sorting(z: np.ndarray, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The oracle: which tokens stay, from a sort in float64."""
    z = z.astype(np.float64)
    keep = np.ones(len(z), bool)
    if top_k:
        keep &= z >= np.sort(z)[::-1][min(top_k, len(z)) - 1]
    p = np.where(keep, np.exp(z - z.max()), 0)
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    last = order[np.searchsorted(np.cumsum(p[order]), top_p - 1e-12)] if top_p < 1 else order[-1]
    return keep & (p >= p[last]) & (p >= min_p * p.max())


def test_e04_greedy_is_argmax_and_never_nan() -> None:
    logits = np.random.default_rng(0).normal(size=V) * 4
    for same in (
        {"temperature": 0},
        {"temperature": 1e-9},
        {"top_k": 1},
        {"top_p": 0},
        {"top_p": 0.0, "temperature": 5},
        {"min_p": 1},
    ):
        assert set(draws(Sampler(**same), logits, 8)) == {int(logits.argmax())}, same


def test_e04_equal_logits_give_the_lowest_id() -> None:
    logits = np.zeros(V)
    logits[[11, 40, 90]] = 2.5
    for same in ({"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
        assert set(draws(Sampler(**same), logits, 8)) == {11}


def test_e04_argmax_matches_numpy() -> None:
    z = np.random.default_rng(1).integers(-3, 3, size=(64, V)).astype(np.float32)
    z[0, 5] = -np.inf
    np.testing.assert_array_equal(argmax(jnp.array(z)), z.argmax(-1))


def test_e04_settings_that_keep_all_draw_the_models_own_distribution() -> None:
    logits = np.random.default_rng(2).normal(size=V)
    for all_of_it in (OFF, OFF | {"top_k": 10**9}, OFF | {"top_k": V}):
        seen = np.bincount(draws(Sampler(temperature=1, **all_of_it), logits, 40_000), minlength=V)
        p = np.exp(logits) / np.exp(logits).sum()
        chi2 = ((seen - 40_000 * p) ** 2 / (40_000 * p)).sum()
        assert chi2 < V - 1 + 5 * math.sqrt(2 * (V - 1))


def test_e04_temperature_comes_after_the_filters() -> None:
    # Heat would let token 1 into the nucleus of 0.6; the filter looks at the model's own probabilities.
    logits = np.log([0.7, 0.2, 0.1])
    assert set(draws(Sampler(temperature=100, top_k=0, top_p=0.6, min_p=0), logits, 64)) == {0}
    warm = draws(Sampler(temperature=2, **OFF), logits, 40_000)
    expected = np.sqrt([0.7, 0.2, 0.1]) / np.sqrt([0.7, 0.2, 0.1]).sum()
    np.testing.assert_allclose(np.bincount(warm) / 40_000, expected, atol=0.015)


@options(max_examples=150, deadline=None)
@given(
    data=st.integers(0, 2**32 - 1),
    top_k=st.integers(0, V + 3),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
    coarse=st.booleans(),
)
def test_e04_filters_keep_what_a_sort_keeps(data: int, top_k: int, top_p: float, min_p: float, coarse: bool) -> None:
    rng = np.random.default_rng(data)
    z = (rng.normal(size=V) * 3).astype(np.float32)
    if coarse:
        z = np.round(z)  # many ties
    p = np.exp(z.astype(np.float64))
    order = -np.sort(-p)
    if top_k:
        order = order[: (p >= order[min(top_k, V) - 1]).sum()]
    mass = np.cumsum(order) / order.sum()
    if np.abs(mass - top_p).min() < 1e-5 or np.abs(p / p.max() - min_p).min() < 1e-5:
        return  # float32 may fall on either side of such a border
    got = _filters(z[None], top_k, np.float32(top_p), np.float32(min_p))[0]
    expected = kept_by_sorting(z, top_k, top_p, min_p)
    np.testing.assert_array_equal(np.isfinite(got), expected)
    np.testing.assert_array_equal(np.asarray(got)[expected], z[expected])


@jax.jit
def _filters(z: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    return keep_min_p(keep_top_p(keep_top_k(z, top_k), top_p), min_p)


def test_e04_filters_on_rows_of_their_own_and_a_real_vocabulary_size() -> None:
    z = (np.random.default_rng(3).normal(size=(3, 151_936)) * 3).astype(np.float32)
    z[1] += 100
    got = np.isfinite(_filters(z, 1000, np.float32(0.9), np.float32(0.001)))
    for row in range(3):
        np.testing.assert_array_equal(got[row], kept_by_sorting(z[row], 1000, 0.9, 0.001))


def test_e04_repetition_penalty_counts_an_id_once_and_never_rewards() -> None:
    z = adjusted(Sampler(repetition_penalty=1.3), [1.2, -0.8, 0.5], output=(0, 0, 1))
    np.testing.assert_allclose(z, [0.9231, -1.04, 0.5], atol=1e-4)


def test_e04_repetition_penalty_covers_the_prompt() -> None:
    z = adjusted(Sampler(repetition_penalty=2), [1.0, -1.0, 4.0], prompt={0, 1}, output=(0,))
    np.testing.assert_array_equal(z, [0.5, -2.0, 4.0])


def test_e04_frequency_and_presence_count_the_output_only() -> None:
    z = adjusted(Sampler(frequency_penalty=0.5, presence_penalty=0.25), [3.0, 3.0, 3.0], prompt={0}, output=(1, 1, 2))
    np.testing.assert_array_equal(z, [3.0, 1.75, 2.25])


def test_e04_neutral_settings_leave_logits_bit_for_bit() -> None:
    logits = (np.random.default_rng(4).normal(size=V) * 10).astype(np.float32)
    z = adjusted(Sampler(), logits.tolist(), prompt=set(range(40)), output=tuple(range(60)))
    np.testing.assert_array_equal(z, logits)


def test_e04_bias_comes_first_and_may_forbid() -> None:
    sampler = Sampler(logit_bias={0: -math.inf, 1: 1.0}, repetition_penalty=2)
    np.testing.assert_array_equal(adjusted(sampler, [9.0, 1.0, 2.0], prompt={0, 1}), [-np.inf, 1.0, 2.0])
    assert 0 not in draws(Sampler(temperature=50, logit_bias={0: -math.inf}, **OFF), np.array([-np.inf, 1, 2.0]), 64)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -0.1, "hot", "inf", None, True, [1]])
def test_e04_bad_temperature_is_named(value: object) -> None:
    with pytest.raises(ArgumentError, match="^temperature is"):
        Sampler(temperature=value)


@pytest.mark.parametrize("field", ["top_p", "min_p"])
@pytest.mark.parametrize("value", [1.1, -0.1, math.nan, math.inf, "0.5", None])
def test_e04_bad_shares_are_named(field: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"^{field} is .*; give a number"):
        Sampler(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", -1), ("top_k", 1.5), ("top_k", "3"), ("top_k", True), ("repetition_penalty", 0)]
    + [("repetition_penalty", -1.3), ("repetition_penalty", math.nan), ("frequency_penalty", math.inf)]
    + [("presence_penalty", "1"), ("seed", -1), ("seed", 1.0), ("seed", "1"), ("logit_bias", [1])],
)
def test_e04_bad_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"^{field} is"):
        Sampler(**{field: value})


@pytest.mark.parametrize("bias", [{"1": 1.0}, {-1: 1.0}, {1: math.nan}, {1: math.inf}, {1: "x"}, {1.5: 1.0}])
def test_e04_bad_logit_bias_is_named(bias: dict) -> None:
    with pytest.raises(ArgumentError, match="^logit_bias"):
        Sampler(logit_bias=bias)


def test_e04_logit_bias_beyond_the_vocabulary_or_on_all_of_it() -> None:
    with pytest.raises(ArgumentError, match="logit_bias names token 97"):
        Sampler(logit_bias={97: 1.0}).settings(V, 0)
    with pytest.raises(ArgumentError, match="forbids every token"):
        Sampler(logit_bias=dict.fromkeys(range(V), -math.inf)).settings(V, 0)


def test_e04_good_values_of_any_number_type() -> None:
    s = Sampler(temperature=np.float32(0.5), top_k=np.int64(10**9), top_p=1, min_p=np.float64(0), seed=2**100)
    assert not s.greedy
    assert {f.dtype.name for f in jax.tree.leaves(s.settings(V, s.seed))} == {"bool", "float32", "int32", "uint32"}
    assert hash(Sampler()) == hash(Sampler())


def test_e04_fresh_seeds_differ() -> None:
    assert max(Counter(fresh_seed() for _ in range(100)).values()) == 1


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 1e39},
        {"repetition_penalty": 1e39},
        {"repetition_penalty": 1e-46},
        {"frequency_penalty": -1e39},
        {"presence_penalty": 1e39},
        {"logit_bias": {3: 1e39}},
    ],
)
def test_e04_numbers_beyond_float32_are_refused(field: dict) -> None:
    with pytest.raises(ArgumentError, match=next(iter(field))):
        Sampler(**field)


def test_a_numpy_seed_becomes_a_plain_one() -> None:
    assert type(Sampler(seed=np.int64(3)).seed) is int


def test_numbers_that_no_float_holds_are_refused() -> None:
    with pytest.raises(ArgumentError, match="^temperature is"):
        Sampler(temperature=10**400)


def test_the_likeliest_token():
    """Of processed logits, with the log-probability that the raw ones give it; the lowest id among equals."""
    rng = np.random.default_rng(3)
    logits, z = (rng.normal(0, 4, (6, V)).astype(np.float32) for _ in range(2))
    z[1, [9, 40]] = 50
    logits[2, 5], z[3, 7], z[4, 8], z[5, 8] = np.inf, np.nan, -np.inf, np.inf
    token, logprob, sound = (np.asarray(x) for x in jax.jit(likeliest)(z, logits))
    np.testing.assert_array_equal(sound, [True, True, False, False, True, False])
    np.testing.assert_array_equal(token[sound], z[sound].argmax(-1))
    rows = logits[sound].astype(np.float64)
    wanted = rows[np.arange(3), token[sound]] - np.log(np.exp(rows).sum(-1))
    np.testing.assert_allclose(logprob[sound], wanted, atol=1e-5)
    assert ((token >= 0) & (token < V)).all()
