"""`minfer-jax generate`: greedy text of the oracle, stop strings, limits, seeds."""

from pathlib import Path

import pytest

from tests.cli.conftest import assert_one_error
from tests.tiny import CASES

GREEDY = ("--temperature", "0")


def test_generate_prints_the_text_of_the_oracle(run, smol135: Path, golden) -> None:
    want = golden["greedy"]
    outcome = run("generate", smol135, want["prompt"], *GREEDY, "-n", len(want["ids"]))
    assert outcome == (0, want["text"] + "\n", "")


def test_generate_json(run, smol135: Path, golden) -> None:
    want = golden["greedy"]
    stdin = want["prompt"].encode() + b"\r\n"
    arguments = (*GREEDY, "--max-tokens", len(want["ids"]), "--precision", "exact", "--json")
    got = run("generate", smol135, "-", *arguments, stdin=stdin).json
    assert got["text"] == want["text"] and got["tokens"] == want["ids"]
    assert got["token_logprobs"] == pytest.approx(want["logprobs"], abs=1e-3)
    assert got["finish_reason"] == "length" and got["stopped_by"] is None
    n = len(want["ids"])
    assert got["usage"] == {"prompt_tokens": 11, "completion_tokens": n, "total_tokens": 11 + n}
    assert got["model"]["file"] == [smol135.name]


def test_e01_stop_strings(run, smol135: Path, golden) -> None:
    want = golden["greedy"]
    outcome = run("generate", smol135, want["prompt"], *GREEDY, "-n", 16, "--stop", "8", "--stop", "7, 8")
    assert outcome.out == want["text"][: want["text"].find("7, 8")] + "\n"
    got = run("generate", smol135, want["prompt"], *GREEDY, "-n", 16, "--stop", "6, 7", "--json").json
    assert (got["text"], got["finish_reason"], got["stopped_by"]) == (" 5, ", "stop", "6, 7")


def test_t03_control_tokens_of_a_prompt_only_on_request(run, smol135: Path, golden) -> None:
    chat = golden["chat"]
    got = run("generate", smol135, chat["prompt"], *GREEDY, "--parse-special", "--json").json
    assert got["text"] == chat["answer"] and got["usage"]["prompt_tokens"] == chat["n_prompt"]
    assert got["finish_reason"] == "stop"
    plain = run("generate", smol135, chat["prompt"], *GREEDY, "-n", 1, "--json").json
    assert plain["usage"]["prompt_tokens"] > chat["n_prompt"]


def test_e04_a_seed_makes_the_text_reproducible(run, tiny_gguf) -> None:
    arguments = ("generate", tiny_gguf(next(iter(CASES))), "the", "-n", 12, "--temperature", 2, "--top-k", 0, "--json")
    first = run(*arguments, "--seed", 7).json
    assert first["tokens"] == run(*arguments, "--seed", 7).json["tokens"] and first["seed"] == 7
    assert first["tokens"] != run(*arguments, "--seed", 8).json["tokens"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("top-p", "1.1"),
        ("top-k", "-1"),
        ("min-p", "2"),
        ("repetition-penalty", "0"),
        ("seed", "-3"),
        ("max-tokens", "-2"),
    ],
)
def test_e04_settings_out_of_range_are_named(run, tiny_gguf, option: str, value: str) -> None:
    outcome = run("generate", tiny_gguf(next(iter(CASES))), "a", f"--{option}", value)
    assert_one_error(outcome, option.replace("-", "_"), value)


def test_e07_limits_and_a_full_context(run, tiny_gguf) -> None:
    model = tiny_gguf(next(iter(CASES)))
    arguments = ("generate", model, *GREEDY, "--n-ctx", 64)
    assert_one_error(run(*arguments, "z" * 70), "70", "64")
    assert_one_error(run(*arguments, "z" * 64), "64")
    got = run(*arguments, "z" * 60, "-n", 50, "--json").json
    assert got["usage"]["completion_tokens"] <= 4
    assert run(*arguments, "z", "-n", 0) == (0, "\n", "")
    everything = run(*arguments, "z" * 60, "-n", -1, "--json").json
    assert everything["tokens"] == got["tokens"]
    assert run(*arguments, "z", "-n", "1.5").code == 2


def test_t06_a_prompt_that_is_no_text_is_one_line(run, tiny_gguf) -> None:
    model = tiny_gguf(next(iter(CASES)))
    assert_one_error(run("generate", model, "\udce9"), "surrogate")  # as Python hands on an argument in Latin-1
    assert_one_error(run("generate", model, "-", stdin=b"caf\xe9"), "stdin", "byte 3")
