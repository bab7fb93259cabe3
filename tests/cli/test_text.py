"""Tables and the log on stderr."""

import logging

import pytest

from minfer_jax.cli.text import print_table
from minfer_jax.display.text import printable, quoted


def test_table_aligns_numbers_right_and_text_left(capsys: pytest.CaptureFixture) -> None:
    print_table([("a", 1, None), ("long", 20, True), ("x", 300, False)], header=("name", "n", "ok"))
    assert capsys.readouterr().out == "name    n  ok\na       1  -\nlong   20  yes\nx     300  no\n"


def test_table_counts_wide_and_combining_characters(capsys: pytest.CaptureFixture) -> None:
    print_table([("世界", 1.5), ("e\u0301", -2.0), ("abcd", 0.25)])
    assert capsys.readouterr().out == "世界   1.5000\ne\u0301     -2.0000\nabcd   0.2500\n"


def test_table_without_rows(capsys: pytest.CaptureFixture) -> None:
    print_table([], header=("a", "b"))
    assert capsys.readouterr().out == "a  b\n"


def test_text_is_shown_on_one_line() -> None:
    assert printable("a\nb\x1b[1m\u2028é 世") == r"a\nb\x1b[1m\u2028é 世"
    assert quoted(" a ") == '" a "'


@pytest.mark.parametrize(("options", "levels"), [([], "W"), (["-v"], "WI"), (["-vv"], "WID")])
def test_verbosity_decides_what_is_logged(run, tiny_gguf, monkeypatch, options: list[str], levels: str) -> None:
    def talkative(*_: object, **__: object) -> int:
        logger = logging.getLogger("minfer_jax")
        for level in ("WARNING", "INFO", "DEBUG"):
            logger.log(getattr(logging, level), level)
        return 0

    monkeypatch.setattr("minfer_jax.cli.info.run", talkative)
    outcome = run("info", "x.gguf", *options)
    lines = [f"minfer-jax: {level}" for level in ("WARNING", "INFO", "DEBUG") if level[0] in levels]
    assert outcome.err.splitlines() == lines
    assert not logging.getLogger("minfer_jax").handlers
