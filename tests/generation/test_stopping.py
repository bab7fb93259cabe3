"""Case E01: stop strings in a text that comes in pieces; the oracle is str.find on the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from minfer_jax.generation.stopping import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    out = [matcher.push(piece) for piece in pieces]
    return [*out, matcher.finish()], matcher.matched


def test_e01_a_stop_within_one_piece() -> None:
    assert run(["\n"], ["ab\ncd"]) == (["ab", ""], "\n")


def test_e01_a_stop_across_pieces_lets_nothing_of_itself_out() -> None:
    assert run(["6, 7"], [" 5", ", ", "6", ", ", "7", ","]) == ([" 5", ", ", "", "", "", "", ""], "6, 7")


def test_e01_held_text_is_released_when_the_stop_does_not_come() -> None:
    assert run(["9, 10"], ["8, ", "9", ", ", "11"]) == (["8, ", "", "", "9, 11", ""], None)
    assert run(["9, 10"], ["8, ", "9", ", 1"]) == (["8, ", "", "", "9, 1"], None)


def test_e01_the_match_that_starts_first_counts() -> None:
    assert run(["8", "7, 8"], ["6, ", "7", ", ", "8"])[0] == ["6, ", "", "", "", ""]
    assert run(["c", "bcd"], list("abcd")) == (["a", "", "", "", ""], "bcd")
    assert run(["c", "bcd"], list("abcx")) == (["a", "", "", "b", ""], "c")
    assert run(["c", "bcd"], list("abc")) == (["a", "", "", "b"], "c")


def test_e01_empty_stops_are_ignored() -> None:
    assert run(["", ""], ["ab", "c"]) == (["ab", "c", ""], None)


def test_e01_a_stop_of_repeating_text() -> None:
    assert run(["aab"], list("aaab")) == (["", "", "a", "", ""], "aab")


TEXT = st.text("ab\u00e9", max_size=12)


@given(st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=8))
def test_e01_same_text_as_str_find_however_it_is_cut(stops: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    starts = [text.find(s) for s in stops if s and s in text]
    out, matched = run(stops, pieces)
    assert "".join(out) == text[: min(starts, default=len(text))]
    assert (matched is None) == (not starts)
    if matched is not None:
        assert text.startswith(matched, min(starts))
    assert run(stops, list(text))[1] == matched or text.startswith(run(stops, list(text))[1] or "", min(starts))
