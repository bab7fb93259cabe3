"""`minfer-jax dot`: the program that is drawn is the one asked for, as a graph that holds together."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import assert_one_error


def labels(source: str) -> list[str]:
    """Labels of the nodes of a graph whose brackets close and whose edges join nodes."""
    assert source.startswith("digraph {\n") and source.endswith("}\n")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", source)
    assert bare.count("{") == bare.count("}") and bare.count("[") == bare.count("]") and '"' not in bare
    nodes = dict(re.findall(r'^(n\d+_\d+) \[label="((?:[^"\\]|\\.)*)"', source, re.M))
    edges = re.findall(r"^(n\d+_\d+) -> (n\d+_\d+)", source, re.M)
    assert edges and {end for edge in edges for end in edge} <= nodes.keys()
    return list(nodes.values())


def parameters(source: str) -> dict[str, str]:
    """Shape of each argument of the program, by the name that JAX knows it by."""
    lines = [label.split(r"\n") for label in labels(source)]
    return {line[3].replace("\\", ""): line[2] for line in lines if len(line) > 3 and line[1] == "parameter"}


@pytest.mark.parametrize(
    ("arguments", "name", "shape"),
    [
        (("--tokens", 16), "tokens", "s32[1,16]"),
        (("--kind", "prefill", "--tokens", 20), "tokens", "s32[1,24]"),
        (("--kind", "prefill", "--tokens", 20, "--promoted"), "tokens", "s32[1,20]"),
        (("--kind", "prefill", "--tokens", 20, "--batch", 2), "tokens", "s32[2,24]"),
        (("--kind", "prefill", "--cache", 64), "cache.k", "f32[3,1,2,64,16]"),
        (("--kind", "prefill"), "cache.v", "f32[3,1,2,256,16]"),
        (("--kind", "score", "--tokens", 20, "--batch", 3), "tokens", "s32[4,24]"),
        (("--kind", "score", "--tokens", 20, "--batch", 3, "--promoted"), "targets", "s32[60]"),
        (("--kind", "decode", "--tokens", 32, "--batch", 3), "state.position", "s32[4]"),
        (("--kind", "decode", "--tokens", 32, "--batch", 3, "--promoted"), "state.position", "s32[3]"),
        (("--kind", "decode", "--tokens", 32, "--cache", 64), "cache.k", "f32[3,1,2,64,16]"),
        (("--kind", "decode", "--tokens", 1), "tokens", "s32[1,1]"),
    ],
)
def test_the_program_is_that_of_the_shape(run, tiny_gguf, arguments, name: str, shape: str) -> None:
    outcome = run("dot", tiny_gguf("llama"), *arguments)
    assert outcome.code == 0
    assert parameters(outcome.out)[name] == shape


def test_only_many_steps_are_a_loop_over_steps(run, tiny_gguf) -> None:
    model = tiny_gguf("llama")
    loops = {
        n: sum(label.split(r"\n")[1].startswith("while") for label in labels(run("dot", model, *arguments).out))
        for n, arguments in {
            "prefill": (),
            "step": ("--kind", "decode", "--tokens", 1),
            "many": ("--kind", "decode", "--tokens", 32),
        }.items()
    }
    assert loops["prefill"] == loops["step"] < loops["many"]


def test_to_a_file(run, tiny_gguf, tmp_path: Path) -> None:
    model, path = tiny_gguf("llama"), tmp_path / "graph.dot"
    outcome = run("dot", model, "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    assert path.read_text(encoding="utf-8") == run("dot", model).out


def test_json(run, tiny_gguf) -> None:
    got = run("dot", tiny_gguf("llama"), "--tokens", 20, "--json").json
    assert got["program"].startswith("prefill b1 t24 o1 c256") and got["splits"] == 1
    assert labels(got["dot"]) and got["model"]["architecture"] == "llama"
    working = re.findall(r"^n\d+_\d+ .*lightblue", got["dot"], re.M)
    assert 0 < len(working) <= got["kernels"]  # a node in a loop is several launches


def test_the_switch_for_prefill_does_not_hide_the_promoted_program(run, tiny_gguf, monkeypatch) -> None:
    monkeypatch.setenv("MINFER_NO_PREFILL_CAPTURE", "1")
    outcome = run("dot", tiny_gguf("llama"), "--tokens", 20, "--promoted")
    assert parameters(outcome.out)["tokens"] == "s32[1,20]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", 300), ("300", "256")),
        (("--kind", "score", "--tokens", 300), ("300", "256")),
        (("--kind", "decode", "--cache", 300), ("300", "256")),
        (("--tokens", 20, "--cache", 8), ("cache", "8", "20")),
        (("--tokens", 0), ("tokens", "0")),
        (("--batch", -1), ("batch", "-1")),
        (("-o", "/nowhere/graph.dot"), ("/nowhere/graph.dot", "cannot be written")),
    ],
)
def test_bad_arguments_are_one_line(run, tiny_gguf, arguments, words) -> None:
    assert_one_error(run("dot", tiny_gguf("llama"), *arguments), *words)


@pytest.mark.parametrize("arguments", [("--kind", "train"), ("--kind", "score", "--cache", 64), ("--tokens", "x")])
def test_wrong_usage(run, tiny_gguf, arguments) -> None:
    outcome = run("dot", tiny_gguf("llama"), *arguments)
    assert outcome.code == 2 and outcome.out == ""
