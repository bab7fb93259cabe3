"""The HTML helpers on awkward text: nothing of it becomes HTML, and all of it is there to be read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minfer_jax.display import html
from tests.display.parsed import parse

AWKWARD = [
    "<script>alert(1)</script>",
    "</div>",
    '"&amp;',
    "' onmouseover='x",
    "a\nb",
    "\x1b[1m",
    "\u202e",
    "\ud800",
    "é世",
]


@given(st.text(st.characters(codec=None)))
def test_any_text_stays_text(text: str) -> None:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    page = parse(html.block(text, html.facts({text: text}), html.table([(text, 1)], (text, "n")), note=text))
    assert page.all("b")[0].text() == shown
    assert [note.text() for note in page.all("small")] == [shown] * bool(text)
    names, header = page.all("table")
    assert names.table() == [[shown, shown]]
    assert header.table() == [[shown, "n"], [shown, "1"]]


@given(st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=5))
def test_a_heat_map_holds_every_token(texts: list[str]) -> None:
    page = parse(html.heat_map(range(len(texts)), texts, [-1.0] * len(texts)))
    tokens = page.all("ruby")
    assert len(tokens) == len(texts)
    # Without what stands for line ends, the text is that of the tokens, what does not print as an escape.
    lines = "".join(texts).split("\n")
    shown = ["".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line) for line in lines]
    assert page.text(without=("rt",)).replace("↵", "") == "\n".join(shown).replace("↵", "")


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_tokens(text: str) -> None:
    page = parse(html.heat_map([7], [text], [math.log(0.25)]))
    (token,) = page.all("ruby")
    assert token.attributes["title"] == "id 7, log-probability -1.3863, probability 0.25"
    assert token.all("rt")[0].text() == "-1.39"


def test_redder_is_less_likely_up_to_ten_nats() -> None:
    page = parse(html.heat_map(range(5), "abcde", [None, -0.0, -5.0, -10.0, -99.0]))
    styles = [token.attributes["style"] or "" for token in page.all("ruby")]
    reds = [float(style.partition(")")[0].rpartition(",")[2]) for style in styles[1:]]
    assert "background" not in styles[0]
    assert reds[0] == 0 < reds[2] == reds[3] < 0.8 and reds[1] == pytest.approx(reds[2] / 2, abs=0.01)
    assert page.all("rt")[0].text() == "–"
    assert "log-probability" not in (page.all("ruby")[0].attributes["title"] or "")


def test_colours_are_the_notebook_s_own() -> None:
    page = html.block("title", html.heat_map([1], ["a"], [-3.0]), html.facts({"a": 1}), html.table([(1,)], ("n",)))
    assert "rgba(" in page and ";color:" not in page and '"color:' not in page  # translucent, and text left alone


def test_a_long_text_is_small() -> None:
    n = 20_000
    text = html.heat_map(range(n), ["a"] * n, [-1.0] * n)
    assert len(text) < 70_000
    page = parse(text)
    assert len(page.all("span")) == 500 and not page.all("ruby", "rt")
    assert page.all("small")[0].text() == "… 19,500 tokens more"


def test_a_long_token_is_whole_and_an_empty_text_nothing() -> None:
    assert "a" * 10_000 in html.heat_map([1], ["a" * 10_000], [-1.0])
    assert parse(html.heat_map([], [], [])).text() == ""


def test_tables_align_numbers_and_leave_out_facts_that_are_none() -> None:
    page = parse(html.table([("x", 1, 2.0, True, None)], ("a", "b", "c", "d", "e")))
    styles = [cell.attributes["style"] or "" for cell in page.all("td")]
    assert [style.split(";")[0] for style in styles] == [
        f"text-align:{s}" for s in ("left", "right", "right", "left", "left")
    ]
    assert [cell.text() for cell in page.all("td")] == ["x", "1", "2.0000", "yes", "-"]
    assert parse(html.facts({"a": None, "b": "c"})).table() == [["b", "c"]]
