"""`minfer-jax eval`: the harness's own command on a model of ours."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import assert_one_error
from tests.stderr import errors

TASKS = Path(__file__).parent.parent / "integrations" / "tasks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The harness where the tasks lie, offline, with its files elsewhere."""
    pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")
    import datasets  # pyright: ignore[reportMissingImports]
    from lm_eval import tasks

    # Without reading the thousands of files that describe its own tasks, which takes seconds.
    monkeypatch.setattr(tasks, "TaskManager", functools.partial(tasks.TaskManager, include_defaults=False))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for name in ("DISABLE_MULTIPROC", "TOKENIZERS_PARALLELISM"):  # the command sets them
        monkeypatch.setenv(name, "1" if name.startswith("DISABLE") else "false")
    monkeypatch.chdir(TASKS)


def test_eval_prints_the_harness_s_table(run, harness, tiny_gguf) -> None:
    outcome = run("eval", tiny_gguf("llama"), "--tasks", "choice.yaml", "--limit", 2, "--num_fewshot", 1)
    assert outcome.code == 0
    assert "mj_choice" in outcome.out and "acc_norm" in outcome.out and "minfer_jax" in outcome.out
    assert "minfer-jax: --limit SHOULD ONLY BE USED FOR TESTING." in outcome.err
    assert "Traceback" not in outcome.err


def test_eval_json_is_one_document_with_provenance(run, harness, tiny_gguf, tmp_path: Path) -> None:
    tasks = ("--tasks", "choice.yaml,rolling.yaml")
    path = tiny_gguf("llama")
    outcome = run("eval", path, *tasks, "--json", "--n-ctx", 128, "--precision", "exact", "--seed", 7)
    assert outcome.code == 0, outcome.err
    assert set(outcome.json["results"]) == {"mj_choice", "mj_rolling"}
    config = outcome.json["config"]
    assert config["minfer_jax"]["n_ctx"] == 128 and config["minfer_jax"]["file"] == ["llama.gguf"]
    assert config["random_seed"] == 7 and config["model"] == "minfer_jax"
    kept = run("eval", path, *tasks, "--json", "--output_path", tmp_path / "out", "--log_samples")
    assert kept.code == 0, kept.err
    (written,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(written.read_text(encoding="utf-8")) == kept.json
    assert len(list((tmp_path / "out").rglob("samples_*.jsonl"))) == 2


def test_eval_hands_model_and_generation_arguments_on(run, harness, tiny_gguf) -> None:
    arguments = ("--model_args", "max_gen_toks=5,seed=3", "--gen_kwargs", "max_gen_toks=4,temperature=0.5")
    outcome = run("eval", tiny_gguf("llama"), "--tasks", "generate.yaml", *arguments, "--batch_size", 2, "--json")
    assert outcome.code == 0, outcome.err
    config = outcome.json["config"]
    assert config["model_args"]["max_gen_toks"] == 5 and config["gen_kwargs"]["max_gen_toks"] == 4
    outcome = run("eval", tiny_gguf("llama"), "--tasks", "generate.yaml", "--model_args", "max_length=9")
    assert_one_error(outcome, "max_length is no argument of the model type")


def test_eval_cache_knows_its_model(run, harness, tiny_gguf, tmp_path: Path) -> None:
    arguments = ("--tasks", "choice.yaml", "--use_cache", tmp_path / "answers")
    assert run("eval", tiny_gguf("llama"), *arguments).code == 0
    assert run("eval", tiny_gguf("llama"), *arguments).code == 0
    assert_one_error(run("eval", tiny_gguf("qwen2"), *arguments), "answers_rank0.db holds answers of another model")


def test_eval_errors_are_one_line(run, harness, tiny_gguf, tmp_path: Path) -> None:
    model = tiny_gguf("llama")
    assert_one_error(run("eval", model, "--tasks", "no_such_task"), "harness", "no_such_task")
    assert_one_error(run("eval", tmp_path / "no.gguf", "--tasks", "choice.yaml"), "no.gguf")
    assert_one_error(run("eval", model, "--tasks", "choice.yaml", "--log_samples"), "harness", "--output_path")
    assert_one_error(run("eval", model, "--tasks", "choice.yaml", "--precision", "half"), "precision", "'half'")
    chat = run("eval", model, "--tasks", "choice.yaml", "--apply_chat_template")
    assert_one_error(chat, "no chat template")


def test_eval_wrong_usage(run, harness, tiny_gguf) -> None:
    model = tiny_gguf("llama")
    assert run("eval").code == 2
    missing = run("eval", model)
    assert missing.code == 2 and "--tasks is missing" in missing.err
    twice = run("eval", model, "--tasks", "choice.yaml", "--model", "hf")
    assert twice.code == 2 and "give the file as MODEL" in twice.err
    unknown = run("eval", model, "--tasks", "choice.yaml", "--no_such_option", "3")
    assert unknown.code == 2 and "--no_such_option" in unknown.err


def test_eval_without_the_harness_says_how_to_install_it(run, tiny_gguf, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    outcome = run("eval", tiny_gguf("llama"), "--tasks", "arc_easy")
    assert_one_error(outcome, "lm_eval", "pip install lm_eval")


def test_eval_as_a_process_with_a_stdout_that_lacks_its_signs(harness, tiny_gguf) -> None:
    command = [sys.executable, "-m", "minfer_jax.cli", "eval", str(tiny_gguf("llama")), "--tasks", "choice.yaml"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    done = subprocess.run(command, cwd=TASKS, env=environment, **options)
    assert done.returncode == 0, done.stderr
    assert "|mj_choice|" in done.stdout and "acc_norm" in done.stdout
    assert errors(done.stderr) == ""  # no progress bar in a pipe


def test_other_commands_still_refuse_what_they_do_not_know(run, tiny_gguf) -> None:
    outcome = run("info", tiny_gguf("llama"), "--tasks", "choice.yaml")
    assert outcome.code == 2 and "unrecognized arguments: --tasks choice.yaml" in outcome.err
