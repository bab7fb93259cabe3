"""From tokens to text on a real model: stop strings (E01), half characters (E03), limits and the context (E07)."""

import json
from dataclasses import replace

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError, ContextLengthError, MinferError, NumericsError
from minfer_jax.generation import Generation, generate, generate_batch, stream
from minfer_jax.generation.output import Row
from minfer_jax.model import Model
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import score_tokens
from tests.generation.golden import GOLDEN
from tests.promises import LARGEST

GREEDY = Sampler(temperature=0)
COUNTING = GOLDEN["smol135"]["short"][2]  # "1, 2, 3, 4," -> " 5, 6, 7, 8, 9, "


def both(model: Model, prompt: str | list[int], **options) -> Generation:
    """generate(), after making sure that stream() says the same."""
    whole = generate(model, prompt, **options)
    pieces = stream(model, prompt, **options)
    joined = "".join(pieces)
    assert joined == whole.text and pieces.result is not None
    assert (pieces.result.tokens, pieces.result.finish_reason) == (whole.tokens, whole.finish_reason)
    return whole


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("6, 7", "stop"),
        (", 7, 8", "stop"),
        ("9, 10", "length"),
        (["8", "7, 8"], "stop"),
        ("", "length"),
        ([], "length"),
        (" ", "stop"),
        (["zzz", "7"], "stop"),
    ],
)
def test_e01_stop_strings_cut_the_golden_text(smol_model: Model, stop: str | list[str], reason: str) -> None:
    text = COUNTING["text"]
    starts = [text.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s and s in text]
    out = both(smol_model, COUNTING["prompt"], max_tokens=16, sampler=GREEDY, stop=stop)
    assert out.text == text[: min(starts, default=len(text))]
    assert out.finish_reason == reason


def test_e01_a_piece_never_shows_the_beginning_of_a_stop(smol_model: Model) -> None:
    pieces = list(stream(smol_model, COUNTING["prompt"], max_tokens=16, sampler=GREEDY, stop=["6, 7"]))
    assert "".join(pieces) == " 5, " and all("6" not in piece for piece in pieces)
    held = list(stream(smol_model, COUNTING["prompt"], max_tokens=16, sampler=GREEDY, stop=["9, 10"]))
    assert "".join(held) == COUNTING["text"] and held[-1].startswith("9")


@pytest.mark.parametrize("stop", [1, [1], b"x", [None], {"a": 1}.keys()])
def test_e01_bad_stops_are_named(smol_model: Model, stop: object) -> None:
    with pytest.raises(ArgumentError, match="^stop is"):
        generate(smol_model, "a", stop=stop)


@pytest.mark.parametrize("cut", [None, 1, 2, 3])
def test_e03_pieces_hold_whole_characters(smol_model: Model, cut: int | None) -> None:
    golden = GOLDEN["smol135"]["stream_emoji"]
    ids = golden["ids"][:cut]
    row = Row(1, (), np.zeros(smol_model.config.vocab_size, bool), smol_model.tokenizer.stream_decoder())
    pieces = [row.push(token, 0.0, 1000) for token in ids]
    assert pieces == golden["chunks"][:cut]
    row.finish("length", None)
    whole = bytes.fromhex("".join(golden["piece_hex"][:cut])).decode("utf-8", "replace")
    assert row.result(0).text == whole


@pytest.mark.parametrize(("n", "text"), [(1, "\ufffd"), (2, "\ufffd\ufffd")])
def test_e03_max_tokens_inside_a_character(smol_model: Model, n: int, text: str) -> None:
    half = GOLDEN["smol135"]["stream_emoji"]["ids"][0]  # the first two bytes of an emoji
    out = both(smol_model, "Hello", max_tokens=n, sampler=Sampler(temperature=0, logit_bias={half: 1000}))
    assert (out.tokens, out.text, len(out.token_logprobs)) == ([half] * n, text, n)
    assert all(np.isfinite(out.token_logprobs))


@pytest.fixture
def small_window(smol_model: Model) -> Model:
    return replace(smol_model, config=replace(smol_model.config, n_ctx=64))


@pytest.mark.parametrize("n", [64, 70])
def test_e07_a_prompt_that_fills_the_window_is_refused(small_window: Model, n: int) -> None:
    with pytest.raises(ContextLengthError, match=rf"{n} tokens.*64"):
        generate(small_window, [5] * n, max_tokens=0)
    with pytest.raises(ContextLengthError, match="^prompt: "):
        stream(small_window, [5] * n)
    with pytest.raises(ContextLengthError, match=f"^prompt 2: {n} tokens") as caught:
        generate_batch(small_window, [[5], "a", [5] * n])
    assert caught.value.index == 2


@pytest.mark.parametrize("max_tokens", [50, None, -1, 10**9, np.int64(4)])
def test_e07_output_ends_with_the_window(small_window: Model, max_tokens: int | None) -> None:
    # Prompt and output together fill the window: 4 new ids after 60.
    out = both(small_window, COUNTING["prompt_ids"] * 5 + [216] * 5, max_tokens=max_tokens, sampler=GREEDY, stop_ids=[])
    assert out.usage == {"prompt_tokens": 60, "completion_tokens": 4, "total_tokens": 64}
    assert out.finish_reason == "length" and out.stopped_by is None


def test_e07_the_last_free_place(small_window: Model) -> None:
    assert len(generate(small_window, [5] * 63, sampler=GREEDY, stop_ids=[]).tokens) == 1


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_e07_few_tokens(smol_model: Model, n: int) -> None:
    out = both(smol_model, COUNTING["prompt"], max_tokens=n, sampler=GREEDY)
    assert out.tokens == COUNTING["ids"][:n] and out.finish_reason == "length"
    assert out.usage["prompt_tokens"] == len(COUNTING["prompt_ids"])
    if n == 0:
        assert (out.text, out.token_logprobs) == ("", [])


@pytest.mark.parametrize("bad", [1.5, "5", -2, True, [1], float("nan")])
def test_e07_bad_max_tokens_is_named(smol_model: Model, bad: object) -> None:
    for call in (generate, stream):
        with pytest.raises(ArgumentError, match="^max_tokens is"):
            call(smol_model, "a", max_tokens=bad)


def test_an_empty_text_starts_from_bos_and_no_ids_are_refused(smol_model: Model) -> None:
    seeded = Sampler(temperature=0, seed=0)
    assert generate(smol_model, "", max_tokens=2, sampler=seeded) == generate(
        smol_model, [1], max_tokens=2, sampler=seeded
    )
    with pytest.raises(ArgumentError, match="no tokens"):
        generate(smol_model, [])
    assert generate_batch(smol_model, []) == []
    with pytest.raises(ArgumentError, match="^prompts is"):
        generate_batch(smol_model, "one string")
    for bad, message in (([5, -1], "id -1 is outside"), ("\ud800", "the text holds the lone"), ([], "no tokens")):
        with pytest.raises(MinferError, match=f"^prompt 1: {message}"):
            generate_batch(smol_model, ["a", bad])
    for bad in (5, "a", [[1]], {"a", 1}):
        with pytest.raises(ArgumentError, match="^stop_ids: ids must be a flat sequence of integers"):
            generate(smol_model, "a", stop_ids=bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="^sampler is"):
        generate(smol_model, "a", sampler={"temperature": 0})


def test_n01_logits_that_are_not_finite_are_an_error(smol_model: Model) -> None:
    for value in (np.nan, np.inf):
        broken = replace(smol_model, params=replace(smol_model.params, final_norm=smol_model.params.final_norm * value))
        with pytest.raises(NumericsError, match="token 1 of the output are not finite"):
            generate(broken, "Hello", max_tokens=4, sampler=GREEDY)
        with pytest.raises(NumericsError, match="^prompt 0: logits for token 1"):
            generate_batch(broken, ["Hello", "you"], max_tokens=4, sampler=GREEDY)
        with pytest.raises(NumericsError):
            list(stream(broken, "Hello", max_tokens=4, sampler=Sampler(seed=1)))


def test_s01_the_end_ids_log_probability_is_the_models_own(smol_model: Model) -> None:
    end, ids = 2, COUNTING["prompt_ids"]
    forced = Sampler(temperature=0, logit_bias={end: 1000.0})
    out = generate(smol_model, ids, sampler=forced)
    (wanted,) = score_tokens(smol_model, [(ids, [end])])
    assert (out.tokens, out.stopped_by) == ([], end) and wanted.logprob < -1  # the bias is not in it
    assert out.end_logprob == pytest.approx(wanted.logprob, abs=1e-4)
    assert out.to_dict()["end_logprob"] == out.end_logprob
    assert both(smol_model, ids, max_tokens=1, sampler=GREEDY).end_logprob is None


def test_a_numpy_seed_goes_to_json(smol_model: Model) -> None:
    out = generate(smol_model, "a", max_tokens=1, sampler=Sampler(seed=np.int64(3)))  # type: ignore[arg-type]
    assert json.loads(json.dumps(out.to_dict()))["seed"] == 3


def test_t03_control_tokens_of_a_prompt_only_on_request(smol_model: Model) -> None:
    case = next(case for case in GOLDEN["smol135"]["short"] if "<|im_start|>" in case["prompt"])
    n = len(case["prompt_ids"])
    out = both(smol_model, case["prompt"], max_tokens=4, sampler=GREEDY, parse_special=True)
    assert (out.n_prompt, out.tokens) == (n, case["ids"][:4])
    assert generate_batch(smol_model, [case["prompt"]], max_tokens=0, parse_special=True)[0].n_prompt == n
    assert generate(smol_model, case["prompt"], max_tokens=0).n_prompt > n


def test_a_generation_goes_to_json(smol_model: Model) -> None:
    out = generate(smol_model, COUNTING["prompt"], max_tokens=2, sampler=GREEDY)
    record = json.loads(json.dumps(out.to_dict(), allow_nan=False))
    assert record == out.to_dict()
    assert record["token_logprobs"] == pytest.approx(COUNTING["logprobs"][:2], abs=LARGEST)
    assert record["usage"]["total_tokens"] == len(COUNTING["prompt_ids"]) + 2
