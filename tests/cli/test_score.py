"""`minfer-jax score`: values of the oracle, JSON lines in order, bad rows that harm no other."""

import json
from pathlib import Path

import pytest

from minfer_jax.cli import score
from minfer_jax.tokenizer import Tokenizer
from tests.cli.conftest import assert_one_error
from tests.promises import LARGEST
from tests.tiny import CASES

NEAR = 1e-3
EXACT = ("--precision", "exact")


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize(("options", "near"), [((), LARGEST), (EXACT, NEAR)], ids=["default", "exact"])
def test_s01_text_has_the_values_of_the_oracle(run, smol135: Path, golden, options: tuple, near: float) -> None:
    want = golden["text"]
    got = run("score", smol135, "--text", want["text"], "--json", *options).json
    assert got["tokens"] == want["ids"]
    assert got["token_logprobs"][0] is None is want["token_logprobs"][0]
    assert got["token_logprobs"][1:] == pytest.approx(want["token_logprobs"][1:], abs=near)
    assert got["model"]["file"] == [smol135.name] and got["model"]["implementation"] in ("ffi", "dense")


def test_s02_multiple_choice(run, smol135: Path, golden) -> None:
    want = golden["choices"]
    options = [argument for choice in want["choices"] for argument in ("--continuation", choice)]
    got = run("score", smol135, "--context", want["context"], *options, "--json", *EXACT).json
    assert got["sums"] == pytest.approx(want["logprobs"], abs=NEAR)
    assert got["best_by_sum"] == 0


def test_s02_rows_of_every_kind_in_order(run, smol135: Path, golden) -> None:
    pairs, animal, text = golden["pairs"], golden["animal"], golden["text"]
    requests = [
        *({"context": p["context"], "continuation": p["continuation"], "id": i} for i, p in enumerate(pairs)),
        {"text": text["text"], "source": "ignored"},
        {"context": animal["context"], "choices": animal["choices"]},
    ]
    outcome = run("score", smol135, "-", *EXACT, stdin=lines(*requests))
    assert outcome.code == 0
    *scores, whole, choice = outcome.rows
    assert [row["row"] for row in outcome.rows] == [1, 2, 3, 4, 5]
    for i, (got, want) in enumerate(zip(scores, pairs, strict=True)):
        assert got["id"] == i
        assert got["logprob"] == pytest.approx(want["sum_logprob"], abs=NEAR)
        assert got["tokens"] == want["continuation_ids"]
        assert got["is_greedy"] is want["is_greedy"]
        assert got["merged"] is not want["context_is_prefix_of_whole"]
    assert whole["token_logprobs"][1:] == pytest.approx(text["token_logprobs"][1:], abs=NEAR)
    assert choice["per_byte"] == pytest.approx([s["per_byte"] for s in animal["scores"]], abs=NEAR)
    assert (choice["best_by_sum"], choice["best_by_byte"], choice["best_by_token"]) == (
        animal["best_by_sum"],
        animal["best_by_per_byte"],
        animal["best_by_per_token"],
    )


BAD = [
    (b"{not json", "not JSON"),
    (b"[1, 2]", "not a JSON object"),
    (b'"text"', "not a JSON object"),
    (b"\xff\xfe", "byte 0 is not UTF-8"),
    (b"[" * 100_000, "not JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"text": "a", "id": NaN}', "not JSON that can be read: NaN"),
    (b"{}", "has no fields; give context and continuation, or"),
    (b'{"context": "a"}', "has context; give"),
    (b'{"context": "a", "continuation": "b", "text": "c"}', "has context, continuation, text; give"),
    (b'{"context": "a", "continuation": 5}', "continuation is 5"),
    (b'{"context": null, "choices": ["b"]}', "context is null"),
    (b'{"context": "a", "choices": "b"}', "choices is"),
    (b'{"context": "a", "choices": []}', "choices is"),
    (b'{"context": "a", "choices": ["b", 1]}', "choices is"),
    (b'{"context": "a", "choices": ["b", ""]}', "choice 1: '' has no token to score"),
    (b'{"text": "\\ud800"}', "lone surrogate U+D800"),
    (b'{"context": "a", "continuation": "%s"}' % (b"x " * 300), "longer than|context window 256"),
]


def test_s03_bad_rows_are_reported_and_the_others_scored(run, tiny_gguf) -> None:
    model = tiny_gguf(next(iter(CASES)))
    good = {"context": "the", "continuation": " in", "id": "\ud800 kept"}
    rows = [json.dumps(good).encode()]
    for bad, _ in BAD:
        rows += [bad, b"", json.dumps(good).encode()]
    outcome = run("score", model, "-", stdin=b"\xef\xbb\xbf" + b"\r\n".join(rows))
    assert outcome.code == 1
    assert [row["row"] for row in outcome.rows] == [i for i in range(1, 3 * len(BAD) + 2) if i % 3 != 0]
    (alone,) = run("score", model, "-", stdin=rows[0]).rows
    for row in outcome.rows[::2]:
        assert row["id"] == good["id"]
        assert row["logprob"] == pytest.approx(alone["logprob"], abs=1e-5)
    for i, (_, reason) in enumerate(BAD):
        error = outcome.rows[2 * i + 1]["error"]
        assert any(words in error for words in reason.split("|")), error
        assert f"minfer-jax: row {3 * i + 2}: {error}\n" in outcome.err
    assert outcome.err.endswith(f"minfer-jax: error: {len(BAD)} of {2 * len(BAD) + 1} rows could not be scored\n")


def test_s03_a_bad_row_costs_no_row_more_than_twice(run, tiny_gguf, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, **o: encoded.append(text) or encode(self, text, **o))
    rows = [{"text": "in \ud800" if i % 3 == 0 else f"in {i}"} for i in range(60)]
    outcome = run("score", tiny_gguf("llama"), "-", stdin=lines(*rows))
    assert ["error" in row for row in outcome.rows] == [i % 3 == 0 for i in range(60)]
    assert {row["error"] for row in outcome.rows[::3]} == {outcome.rows[0]["error"]}
    assert outcome.rows[0]["error"].startswith("the text holds the lone surrogate U+D800")
    assert len(encoded) <= 2 * len(rows)


def test_s03_strict_stops_at_the_first_bad_row(run, tiny_gguf) -> None:
    rows = lines({"text": "a the"}, {"text": 1}, {"text": "the"})
    outcome = run("score", tiny_gguf(next(iter(CASES))), "-", "--strict", stdin=rows)
    assert outcome.code == 1 and len(outcome.rows) == 1
    assert outcome.err == "minfer-jax: error: row 2: text is 1; give a text\n"


def test_s03_empty_and_truncated_are_told(run, tiny_gguf) -> None:
    model = tiny_gguf(next(iter(CASES)))
    outcome = run("score", model, "--context", "a", "--continuation", "")
    assert outcome.code == 0 and "is_greedy, empty" in outcome.out
    got = run("score", model, "--n-ctx", 16, "--context", "z" * 40, "--continuation", "y", "--json").json
    assert got["truncated"] is True and len(got["token_logprobs"]) == 1


def test_score_table_shows_tokens(run, smol135: Path, golden) -> None:
    outcome = run("score", smol135, "--context", "The capital of France is", "--continuation", " Paris", *EXACT)
    assert outcome.code == 0 and outcome.err == ""
    assert '7042  " Paris"  -0.258' in outcome.out


def test_score_of_no_rows_is_nothing(run, tiny_gguf, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_bytes(b"\n\n")
    outcome = run("score", tiny_gguf(next(iter(CASES))), tmp_path / "none.jsonl")
    assert outcome == (0, "", "")


def test_score_names_a_file_that_cannot_be_read(run, tiny_gguf, tmp_path: Path) -> None:
    assert_one_error(run("score", tiny_gguf(next(iter(CASES))), tmp_path / "none.jsonl"), "none.jsonl", "No such file")
    assert_one_error(run("score", tiny_gguf(next(iter(CASES))), tmp_path), str(tmp_path), "directory")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--context", "a"],
        ["--continuation", "a"],
        ["-", "--text", "a"],
        ["-", "--context", "a", "--continuation", "b"],
        ["--text", "a", "--context", "b", "--continuation", "c"],
        ["--text", "a", "--n-ctx", "many"],
    ],
)
def test_score_wrong_usage(run, options: list[str]) -> None:
    outcome = run("score", "model.gguf", *options)
    assert outcome.code == 2 and outcome.out == "" and outcome.err.startswith("usage: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--dtype", "int3"),
        ("--implementation", "magic"),
        ("--precision", "half"),
        ("--n-ctx", "0"),
        ("--pre", "no"),
    ],
)
def test_n01_refused_loading_options_are_named(run, tiny_gguf, option: str, value: str) -> None:
    outcome = run("score", tiny_gguf(next(iter(CASES))), "--text", "a", option, value)
    assert_one_error(outcome, value)


def test_help_tells_when_rows_come_out(run) -> None:
    assert f"blocks of {score._TOGETHER} rows" in " ".join(run("score", "--help").out.split())
