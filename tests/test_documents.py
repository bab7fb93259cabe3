"""README, CONTRIBUTING and docs/ hold what they promise: their code runs, prints what they show, and links lead on."""

import ast
import inspect
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minfer_jax
from tests.cli.conftest import run
from tests.documents import LANGUAGES, PAGES, REASONS, ROOT, assert_shown, blocks
from tests.promises import LARGEST

__all__ = ["run"]

WITH_CODE = [page for page in PAGES if any(block.reason is None for block in blocks(page))]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(smol135: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A working folder with model.gguf and text.txt, of which the pages speak as of the reader's own."""
    (tmp_path / "model.gguf").symlink_to(smol135)
    text = (ROOT / "tests" / "data" / "perplexity_text.txt").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(text[:2400], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)  # references and models are large


@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_page_runs(page: Path, folder: Path, run, capsys, monkeypatch) -> None:
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            tree = ast.parse(block.text, str(block))
            ast.increment_lineno(tree, block.line)
            exec(compile(tree, str(page), "exec"), names)
            printed = capsys.readouterr().out
            if block.output:
                assert_shown(block, block.output, printed)
        elif block.language == "console":
            for line, shown in block.commands():
                with monkeypatch.context() as patch:
                    _run_line(str(block), line, shown, run, patch)
    if (check := CHECKS.get(_name(page))) is not None:
        check(names)


def _run_line(where: str, line: str, shown: str, run: Callable, patch: pytest.MonkeyPatch) -> None:
    """Commands with " && " between them; of each " > FILE", "COMMAND | " and NAME=VALUE are understood."""
    printed = ""
    for part in line.split(" && "):
        before, _, command = part.rpartition(" | ")
        command, _, target = command.partition(" > ")
        stdin = subprocess.run(before, shell=True, capture_output=True, check=True).stdout if before else b""
        words = shlex.split(command, comments=True)
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        assert words[0] == "minfer-jax", f"{where} runs {words[0]}: mark the block as not run, with a reason"
        outcome = run(*words[1:], stdin=stdin)
        assert outcome.code == (1 if "minfer-jax: error: " in shown else 0), f"{where}: {line}\n{outcome}"
        if target:
            Path(target.strip()).write_text(outcome.out, encoding="utf-8")
        else:
            printed += outcome.out
        if re.search(r"^minfer-jax", shown, re.M):
            printed += outcome.err
    if shown:
        assert_shown(where, shown, printed)


def _readme(names: dict[str, Any]) -> None:
    """llama.cpp's values, on weights in float32."""
    assert names["scores"][0].is_greedy and abs(names["scores"][0].logprob + 0.25808) < LARGEST
    assert names["out"].text.startswith(" Paris.")


def _quickstart(names: dict[str, Any]) -> None:
    """The forward by hand gives the greedy text, too, and so does the loop."""
    tokenizer = names["model"].tokenizer
    assert tokenizer.decode([int(names["best"][0, 0]), int(names["logits"][0, -1].argmax())]) == " Paris."


def _compiling(names: dict[str, Any]) -> None:
    assert len(names["output"]) == 8 and names["tokenizer"].decode(names["output"]).startswith(" Paris.")


CHECKS = {"README.md": _readme, "docs/quickstart.md": _quickstart, "docs/compiling.md": _compiling}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = blocks(page)
    assert len(found) == len(re.findall(r"^\s*(```|~~~)", text, re.M)) / 2, "a fence that is indented or left open"
    marks = re.findall("^<!-- not run", text, re.M)
    assert len([block for block in found if block.reason]) == len(marks), "a mark without its block"
    for block in found:
        assert block.language in LANGUAGES, f"{block} is {block.language or 'of no language'}"
        assert block.reason is None or block.reason in REASONS, f"{block}: {block.reason}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), f"{_name(page)} links to {target}"


def test_reference_lists_every_public_name() -> None:
    page, _ = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("## Not at the top level")
    listed = re.findall(r"^::: minfer_jax\.(?:[\w.]+\.)?(\w+)$", page, re.M)  # some are modules as well
    assert sorted(listed) == sorted(minfer_jax.__all__)


def test_public_names_are_documented() -> None:
    for name in minfer_jax.__all__:
        value = getattr(minfer_jax, name)
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), name  # which dataclass writes by itself
        if isinstance(value, type):
            methods = [key for key, member in vars(value).items() if key[0] != "_" and callable(member)]
            bare = [key for key in methods if not inspect.getdoc(getattr(value, key))]
            assert not bare, f"{name}: {bare}"


def test_comparison_sees_differences() -> None:
    """What is shown is what was printed: to 2 %, but whole numbers and words as they are."""
    assert_shown("here", "a  -0.2581 of 3\n...\nend", "a -0.2590 of 3\nmore\n\nend\n")
    for printed in ("a -0.2381 of 3 end", "a -0.2581 of 4 end", "b -0.2581 of 3 end", "a -0.2581 of 3"):
        with pytest.raises(AssertionError):
            assert_shown("here", "a -0.2581 of 3 ... end", printed)
