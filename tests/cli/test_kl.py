"""`minfer-jax kl` and `minfer-jax requantize`."""

from pathlib import Path

import pytest

from minfer_jax.load import load
from minfer_jax.scoring import kl_divergence, perplexity
from tests.cli.conftest import assert_one_error
from tests.promises import rounding

TEXT = "the inner theater in an era of other things, and then another " * 12


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def small(run, tiny_gguf, tmp_path: Path) -> Path:
    """The tiny model in Q4_0, made by the command."""
    outcome = run("requantize", tiny_gguf("llama"), tmp_path / "small.gguf", "--type", "Q4_0", "--json")
    assert outcome.code == 0 and outcome.err == ""
    told = outcome.json
    path = tmp_path / "small.gguf"
    assert (told["file"], told["bytes"]) == (str(path), path.stat().st_size)
    assert told["quantisation"].keys() == {"Q4_0", "Q8_0", "F32"} and 4.5 < told["bits_per_weight"] < 9
    assert told["sha256"] == load(path).sha256()
    return path


def test_two_models(run, tiny_gguf, text: Path, small: Path) -> None:
    arguments = ("kl", small, text, "--reference", tiny_gguf("llama"), "--n-ctx", 32)
    found = run(*arguments, "--json").json
    assert found == kl_divergence(load(small), load(tiny_gguf("llama")), TEXT, n_ctx=32).to_dict()
    table = run(*arguments, "--max-chunks", 2).out
    for words in (
        "mean ",
        "+/-",
        "quantile 99 ",
        "same top ",
        " %",
        "perplexity ratio ",
        "small.gguf (",
        "llama.gguf",
    ):
        assert words in table, words
    assert "None" not in table and "{" not in table


def test_a_saved_reference(run, tiny_gguf, text: Path, small: Path, tmp_path: Path) -> None:
    big, saved, other = tiny_gguf("llama"), tmp_path / "r.kl", tmp_path / "s.kl"
    made = run("kl", big, text, "--save", saved, "--n-ctx", 32, "--json").json
    model = load(big)
    expected = perplexity(model, TEXT, n_ctx=32).perplexity
    assert made["perplexity"] == pytest.approx(expected, rel=rounding(model, 1e-5), abs=0)
    assert made["model"]["file"] == ["llama.gguf"]
    found = run("kl", small, "--reference", saved, "--json").json
    assert found["reference"]["saved"] is True and found["reference_perplexity"] == made["perplexity"]
    assert run("kl", small, text, "--reference", saved, "--json").json == found
    assert run("kl", small, "-", "--reference", saved, "--json", stdin=TEXT.encode()).json == found
    both = run("kl", small, text, "--reference", big, "--save", other, "--n-ctx", 32, "--json").json
    assert both == found and other.read_bytes() == saved.read_bytes()
    assert "+/-" in run("kl", big, text, "--save", saved, "--n-ctx", 32).out


def test_wrong_usage_and_bad_input(run, tiny_gguf, text: Path, small: Path, tmp_path: Path) -> None:
    big, saved = tiny_gguf("llama"), tmp_path / "r.kl"
    run("kl", big, text, "--save", saved, "--n-ctx", 32)
    for arguments in (
        ("kl", small, text),
        ("kl", small, "--reference", big),
        ("kl", small, "--save", tmp_path / "x.kl"),
        ("kl", small, text, "--reference", saved, "--save", tmp_path / "x.kl"),
    ):
        outcome = run(*arguments)
        assert outcome.code == 2 and "give " in outcome.err or "--save has nothing" in outcome.err
    assert_one_error(run("kl", small, text, "--reference", tmp_path / "no.gguf", "--n-ctx", 32), "no.gguf")
    assert_one_error(run("kl", small, text, "--reference", text, "--n-ctx", 32), "text.txt")
    assert_one_error(run("kl", small, tmp_path / "no.txt", "--reference", big), "no.txt", "No such file")
    assert_one_error(run("kl", small, "-", "--reference", big, stdin=b"short"), "512", "--n-ctx")
    assert_one_error(run("kl", tiny_gguf("mistral"), "--reference", saved), "r.kl", "same")
    saved.write_bytes(saved.read_bytes()[:-1])
    assert_one_error(run("kl", small, "--reference", saved), "r.kl: cut off")


def test_requantize_errors_and_table(run, tiny_gguf, small: Path, tmp_path: Path) -> None:
    assert_one_error(run("requantize", small, small, "--type", "Q8_0"), "small.gguf", "is a file that is read")
    assert_one_error(run("requantize", small, tmp_path / "x.gguf", "--type", "Q4_K"), "Q4_K", "Q5_1")
    assert_one_error(run("requantize", tmp_path / "no.gguf", tmp_path / "x.gguf", "--type", "Q8_0"), "no.gguf")
    assert run("requantize", small, tmp_path / "x.gguf").code == 2
    table = run("requantize", small, tmp_path / "x.gguf", "--type", "f16").out
    assert "F16" in table and "bits per weight" in table
