"""`minfer-jax demo`: right answers, and text as promised in the README."""

from pathlib import Path

from tests.cli.conftest import assert_one_error


def test_demo_prints_tables(run, smol135: Path) -> None:
    outcome = run("demo")
    assert outcome.code == 0 and outcome.err == ""
    assert "5 of 5 right" in outcome.out
    assert smol135.name in outcome.out and "tokens generated" in outcome.out


def test_demo_json(run, smol135: Path) -> None:
    got = run("demo", "--json", "--model", smol135).json
    assert [answer["best_by_sum"] for answer in got["choices"]] == [0] * 5  # facts of the world
    assert got["text"]["token_logprobs"][0] is None
    assert got["seconds"].keys() == {"fetch", "load", "choices", "text", "generate"}


def test_demo_names_a_model_that_is_missing(run) -> None:
    assert_one_error(run("demo", "--model", "./none.gguf"), "none.gguf")
