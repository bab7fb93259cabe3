"""`minfer-jax perplexity`: both protocols against the oracle's values per token."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import assert_one_error


def test_perplexity_llama_cpp_protocol(run, smol135: Path, golden, tmp_path: Path) -> None:
    # Of the first chunk of a text every token has the context that it has in the whole text, which the oracle knows.
    values = golden["text"]["token_logprobs"]
    n_ctx = len(values) // 2
    scored = values[n_ctx // 2 + 1 : n_ctx]
    (tmp_path / "text.txt").write_text(golden["text"]["text"], encoding="utf-8")
    outcome = run("perplexity", smol135, tmp_path / "text.txt", "--n-ctx", n_ctx, "--max-chunks", 1, "--json")
    got = outcome.json
    assert got["n_scored"] == len(scored) and got["n_tokens"] == len(values)
    assert got["perplexity"] == pytest.approx(math.exp(-np.mean(scored)), rel=1e-3)


def test_perplexity_rolling_reads_stdin(run, smol135: Path, golden) -> None:
    text = golden["after_bos"]["text"]
    arguments = ("--protocol", "rolling", "--precision", "exact", "--json")
    got = run("perplexity", smol135, "-", *arguments, stdin=text.encode()).json
    assert got["n_tokens"] == got["n_scored"] == 3
    assert got["logprob"] == pytest.approx(golden["after_bos"]["sum_logprob"], abs=1e-3)
    assert got["bits_per_byte"] == pytest.approx(-got["logprob"] / len(text) / math.log(2))


def test_perplexity_table(run, smol135: Path) -> None:
    outcome = run("perplexity", smol135, "-", "--protocol", "rolling", stdin=b"Paris is big")
    assert outcome.code == 0 and "perplexity" in outcome.out and "+/-" in outcome.out and "None" not in outcome.out


def test_perplexity_bad_input_is_one_line(run, smol135: Path, tmp_path: Path) -> None:
    assert_one_error(run("perplexity", smol135, tmp_path / "no.txt"), "no.txt", "No such file")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    assert_one_error(run("perplexity", smol135, tmp_path / "latin.txt"), "latin.txt", "byte 3", "UTF-8")
    assert_one_error(run("perplexity", smol135, "-", stdin=b"short"), "1024", "--n-ctx", "--protocol rolling")
    assert_one_error(run("perplexity", smol135, "-", "--protocol", "rolling", stdin=b""), "empty")
    assert run("perplexity", smol135, "-", "--protocol", "guess").code == 2


def test_perplexity_takes_no_window_larger_than_the_models(run, tiny_gguf) -> None:
    outcome = run("perplexity", tiny_gguf("llama"), "-", "--n-ctx", "512", stdin=b"the " * 2000)
    assert_one_error(outcome, "n_ctx is 512, more than the model's window of 256")
    assert run("perplexity", tiny_gguf("llama"), "-", "--context-length", "16").code == 2


def test_t03_perplexity_reads_control_tokens_only_on_request(run, smol135: Path) -> None:
    arguments = ("perplexity", smol135, "-", "--protocol", "rolling", "--json")
    plain = run(*arguments, stdin=b"Hi<|im_end|>").json
    parsed = run(*arguments, "--parse-special", stdin=b"Hi<|im_end|>").json
    assert parsed["n_tokens"] == 2 < plain["n_tokens"]
