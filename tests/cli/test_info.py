"""`minfer-jax info`: what headers tell, without touching a weight or a device."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from tests.cli.conftest import assert_one_error
from tests.tiny import CASES, write_tiny


def test_info_names_the_facts_of_a_real_file(run, smol135: Path, golden) -> None:
    outcome = run("info", smol135, "--json", "--sha256")
    assert outcome.code == 0 and outcome.err == ""
    facts = outcome.json
    assert facts["sha256"] == golden["sha256"]
    assert facts["vocabulary"] == golden["vocabulary"]
    assert facts["bos"] == {"id": golden["bos"], "text": "<|im_start|>"}
    assert facts["eos"] == {"id": golden["eos"], "text": "<|im_end|>"}
    assert facts["bos_is_added"] is False and facts["chat_template"] is True
    assert facts["bytes"] == smol135.stat().st_size
    assert (facts["architecture"], facts["layers"], facts["width"], facts["context"]) == ("llama", 30, 576, 8192)
    assert facts["problems"] == []


def test_info_counts_as_the_gguf_library_does(run, tiny_gguf) -> None:
    path = tiny_gguf("llama_kquants") if "llama_kquants" in CASES else tiny_gguf(next(iter(CASES)))
    tensors = gguf.GGUFReader(path).tensors
    facts = run("info", path, "--json", "--tensors").json
    assert facts["parameters"] == sum(int(tensor.n_elements) for tensor in tensors)
    stored = sum(int(tensor.n_bytes) for tensor in tensors)
    assert facts["bits_per_weight"] == pytest.approx(8 * stored / facts["parameters"])
    assert sum(facts["quantisation"].values()) == len(tensors)
    assert [(t["name"], t["type"], t["shape"][::-1]) for t in facts["tensors"]] == [
        (tensor.name, tensor.tensor_type.name, tensor.shape.tolist()) for tensor in tensors
    ]


def test_info_table_is_plain_lines(run, tiny_gguf) -> None:
    outcome = run("info", tiny_gguf(next(iter(CASES))), "--metadata", "--tensors")
    assert outcome.code == 0
    assert "architecture" in outcome.out and "token_embd.weight" in outcome.out
    assert "tokenizer.ggml.tokens" in outcome.out and "values:" in outcome.out
    assert all(line.isprintable() for line in outcome.out.splitlines())


def test_info_describes_what_cannot_be_loaded(run, tmp_path: Path) -> None:
    path = write_tiny(replace(next(iter(CASES.values())), arch="zebra"), tmp_path / "zebra.gguf")
    outcome = run("info", path, "--json")
    assert outcome.code == 1
    assert outcome.json["architecture"] == "zebra" and outcome.json["parameters"] > 0
    assert "zebra" in outcome.json["problems"][0]
    assert outcome.err == f"minfer-jax: error: {outcome.json['problems'][0]}\n"


def test_info_shows_hostile_names_without_terminal_commands(run, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bad.gguf", "llama")
    writer.add_name("\x1b[2J\nminfer")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    outcome = run("info", tmp_path / "bad.gguf")
    assert outcome.code == 1
    assert r"\x1b[2J\nminfer" in outcome.out and "\x1b" not in outcome.out + outcome.err


def test_g01_cut_file_is_refused_in_one_line(run, smol135: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smol135.open("rb") as file:
        cut.write_bytes(file.read(smol135.stat().st_size // 2))
    for command in (["info", cut], ["score", cut, "--text", "a"], ["generate", cut, "a"]):
        assert_one_error(run(*command), "cut.gguf", str(cut.stat().st_size), str(smol135.stat().st_size))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<!DOCTYPE html><html></html>"])
def test_g02_what_is_no_model_is_refused_in_one_line(run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(content)
    assert_one_error(run("info", path), "page.gguf")


def test_g02_missing_file_is_named(run, tmp_path: Path) -> None:
    assert_one_error(run("info", tmp_path / "none.gguf"), "none.gguf")
    assert_one_error(run("info", "no-such-model"), "no-such-model", "smollm2-135m")


def test_info_touches_no_device(smol135: Path) -> None:
    code = (
        "import sys; from minfer_jax.cli import main; from jax._src import xla_bridge\n"
        "assert main(['info', sys.argv[1]]) == 0 and not xla_bridge.backends_are_initialized()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, smol135], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
