"""`minfer-jax chat`: one message from a pipe, a conversation on a terminal, templates given and missing."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome, assert_one_error
from tests.tiny import CASES

GREEDY = ("--temperature", "0")
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jinja"
    path.write_text(TEMPLATE)
    return path


def test_chat_answers_a_message_from_a_pipe(run, smol135: Path, golden) -> None:
    want = golden["chat"]
    outcome = run("chat", smol135, *GREEDY, stdin=want["message"].encode() + b"\n")
    assert outcome == (0, want["answer"] + "\n", "")


def test_chat_json(run, smol135: Path, golden) -> None:
    want = golden["chat"]
    got = run("chat", smol135, *GREEDY, "--json", stdin=want["message"].encode()).json
    assert got["text"] == want["answer"] and got["usage"]["prompt_tokens"] == want["n_prompt"]
    assert got["finish_reason"] == "stop" and got["stopped_by"] == 2


def test_c02_model_without_template_says_how_to_give_one(run, tiny_gguf) -> None:
    outcome = run("chat", tiny_gguf(next(iter(CASES))), stdin=b"Hi")
    assert_one_error(outcome, "no chat template", "--template FILE")


def test_c02_a_template_of_the_user(run, tiny_gguf, template: Path) -> None:
    model = tiny_gguf(next(iter(CASES)))
    arguments = ("-n", 1, "--json", "--template", template)
    got = run("chat", model, *arguments, "--system", "S", stdin=b"zz").json
    assert got["usage"]["prompt_tokens"] == len("[system] S\n[user] zz\n") - 1  # one merge of the vocabulary: "er"


def test_c02_refusal_in_the_template_s_own_words(run, tiny_gguf, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ raise_exception('only poems here') }}")
    outcome = run("chat", tiny_gguf(next(iter(CASES))), "--template", tmp_path / "t.jinja", stdin=b"Hi")
    assert_one_error(outcome, "only poems here")


def test_c01_broken_template_is_one_line(run, tiny_gguf, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% for %}")
    model = tiny_gguf(next(iter(CASES)))
    assert_one_error(run("chat", model, "--template", tmp_path / "t.jinja", stdin=b"Hi"))
    assert_one_error(run("chat", model, "--template", tmp_path / "none.jinja", stdin=b"Hi"), "none.jinja")


def test_chat_without_a_message(run, tiny_gguf) -> None:
    assert_one_error(run("chat", tiny_gguf(next(iter(CASES))), stdin=b" \n"), "no message")


@pytest.fixture
def talk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tiny_gguf, template: Path
) -> Callable[..., Outcome]:
    """talk(lines, *options): a conversation as on a terminal; None is Ctrl-C at the prompt."""

    def call(lines: list[str | None], *options: object) -> Outcome:
        from minfer_jax.cli import main

        answers: Iterator[str | None] = iter(lines)

        def fake_input(_: str = "") -> str:
            try:
                line = next(answers)
            except StopIteration:
                raise EOFError from None
            if line is None:
                raise KeyboardInterrupt
            return line

        monkeypatch.setattr("builtins.input", fake_input)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        model = tiny_gguf(next(iter(CASES)))
        argv = ["chat", model, "--template", template, "-n", 2, *GREEDY, *options]
        code = main([str(argument) for argument in argv])
        return Outcome(code, *capsys.readouterr())

    return call


def test_chat_keeps_the_conversation_until_it_is_cleared(talk) -> None:
    outcome = talk(["ab", "", "/help", "cd", "/clear", "ab", "/exit", "never read"], "--json")
    assert outcome.code == 0
    first, second, third = outcome.rows
    assert second["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"] + len("[user] cd\n") - 1
    assert third["tokens"] == first["tokens"] and third["usage"] == first["usage"]
    assert "commands: /clear /exit\n" in outcome.err


def test_e07_chat_goes_on_after_a_message_that_is_too_long(talk) -> None:
    outcome = talk(["z" * 80, "ab"], "--json", "--n-ctx", "64")
    assert outcome.code == 0 and len(outcome.rows) == 1
    assert "64" in outcome.err and "/clear" in outcome.err


def test_chat_forgets_an_answer_that_is_stopped(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("minfer_jax.cli.chat.show", interrupt)
        outcome = talk(["ab", "cd"])
    assert outcome.code == 0 and outcome.err.count("stopped; this exchange is forgotten") == 2
    assert "Traceback" not in outcome.err


def test_chat_interrupted_at_the_prompt(talk) -> None:
    assert talk(["ab", None]).code == 130


def test_chat_on_a_terminal(tiny_gguf, template: Path) -> None:
    outside, inside = pty.openpty()
    command = [sys.executable, "-m", "minfer_jax.cli", "chat", tiny_gguf(next(iter(CASES))), "--template", template]
    with subprocess.Popen(
        [*command, "-n", "2"], stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as chat:
        os.close(inside)
        os.write(outside, b"hello\n/exit\n")
        _, err = chat.communicate(timeout=120)
    os.close(outside)
    assert chat.returncode == 0 and "Traceback" not in err
