"""Bad rows are reported and harm no other; a bad file is one line."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minfer_jax import ArgumentError, Columns, MinferError, UnsupportedError, score, score_dataset
from minfer_jax.model import Model
from tests.scoring.dataset.conftest import read

GOOD = {"context": "in the", "continuation": " end"}
BAD = [
    (b"{", "not JSON: "),
    (b"\xff", "byte 0 is not UTF-8"),
    (b'{"context": "a", "continuation": "b", "id": NaN}', "not JSON that can be read: NaN is no JSON"),
    ([1], "not a JSON object"),
    ({"id": 1}, "has id; give context and continuation"),
    ({"context": "a", "continuation": 5, "id": "b"}, "continuation is 5; give a text"),
    ({"context": None, "continuation": "b"}, "context is null; give a text"),
    ({"context": "a", "choices": ["b"]}, "has context, choices; give context and continuation"),
    (
        {"context": "a", "continuation": "b", "text": "c"},
        "has context, continuation, text; give context and continuation",
    ),
    (b'{"context": "a", "continuation": "b", "id": 1e999}', "not JSON that can be read: 1e999 is too large"),
    ({"context": "a", "continuation": "\ud800"}, "lone surrogate U+D800"),
    ({"context": "a", "continuation": "x " * 300}, "context window 256"),
]


@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_s03_bad_rows_are_in_a_file_of_their_own(tiny: Model, tmp_path: Path, lines, end: str) -> None:
    rows = [GOOD, *(row for bad, _ in BAD for row in (bad, b"", GOOD))]
    target = tmp_path / f"scores.{end}"
    done = score_dataset(tiny, lines(*rows), target, shard_rows=4)
    assert (done.rows, done.scored, done.bad) == (2 * len(BAD) + 1, len(BAD) + 1, len(BAD))
    got = read(target) if end == "jsonl" else pq.read_table(target).to_pylist()
    assert [row["row"] for row in got] == list(range(1, 3 * len(BAD) + 2, 3))
    (alone,) = score(tiny, [("in the", " end")])
    assert {row["logprob"] for row in got} == {alone.logprob}
    bad = read(Path(done.errors or ""))
    assert [row["row"] for row in bad] == list(range(2, 3 * len(BAD) + 2, 3))
    for row, (fields, reason) in zip(bad, BAD, strict=True):
        assert reason in row["error"]
        assert row.get("id") == (fields.get("id") if isinstance(fields, dict) else None)


def test_s03_only_the_named_columns_count(tiny: Model, tmp_path: Path, lines) -> None:
    source = lines({"context": "in", "continuation": " the", "text": "end", "choices": 5})
    with pytest.raises(
        ArgumentError, match="line 1: has context, continuation, text, choices; give context and continuation, or"
    ):
        score_dataset(tiny, source, tmp_path / "a.jsonl")
    score_dataset(tiny, source, tmp_path / "b.jsonl", columns=Columns(text="text"))
    assert "windows" in read(tmp_path / "b.jsonl")[0]


def test_s03_strict_stops_and_keeps_what_was_before(tiny: Model, tmp_path: Path, lines, caplog) -> None:
    source = lines(*[GOOD] * 5, {"context": 1, "continuation": "a"}, GOOD)
    with pytest.raises(MinferError, match="rows.jsonl: row 6: context is 1; give a text"):
        score_dataset(tiny, source, tmp_path / "a.jsonl", shard_rows=2, strict=True)
    assert "4 of 7 rows are scored and kept in" in caplog.text
    done = score_dataset(tiny, source, tmp_path / "a.jsonl", shard_rows=2, resume=True)
    assert (done.resumed, done.scored, done.bad) == (4, 6, 1)


def test_what_went_wrong_is_counted_on_stderr(tiny: Model, tmp_path: Path, lines, caplog) -> None:
    score_dataset(tiny, lines(GOOD, {"context": 1, "continuation": "a"}), tmp_path / "a.jsonl")
    assert caplog.messages == [f"1 of 2 rows could not be scored: {tmp_path}/a.jsonl.errors.jsonl"]
    done = score_dataset(tiny, lines({"text": "the"}, {"text": ""}), tmp_path / "b.jsonl")
    assert (done.scored, done.empty) == (2, 1)


def test_a_run_that_keeps_nothing_leaves_nothing(tiny: Model, tmp_path: Path, lines) -> None:
    with pytest.raises(MinferError, match="row 2: context is 1"):
        score_dataset(tiny, lines(GOOD, {"context": 1, "continuation": "a"}), tmp_path / "a.jsonl", strict=True)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("shard_rows", [1, 2])
def test_shards_without_a_good_row(tiny: Model, tmp_path: Path, lines, shard_rows: int) -> None:
    bad = {"context": 1, "continuation": "a"}
    for end in ("jsonl", "parquet"):
        target = tmp_path / f"a{shard_rows}.{end}"
        assert score_dataset(tiny, lines(bad, bad, GOOD, bad, bad), target, shard_rows=shard_rows).scored == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no rows"),
        ([b"", b" "], "holds no rows"),
        ([{"prompt": "a"}, {"prompt": "b"}], "line 1: has prompt; give context and continuation, or "),
        ([b"PAR1 or something"], "no row can be scored: line 1: not JSON"),
    ],
)
def test_a_file_of_nothing_to_score(tiny: Model, tmp_path: Path, lines, rows: list, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"rows.jsonl: .*{message}"):
        score_dataset(tiny, lines(*rows), tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl.parts").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": pa.array([1, 2])}, "column text is of type int64; give texts"),
        ({"text": pa.array([b"a"])}, "column text is of type binary; give texts"),
        ({"context": ["a"], "choices": ["b"]}, "column choices is of type string; give lists of texts"),
        ({"context": ["a"], "choices": [[1]]}, "column choices is of type list<.*int64>; give lists of texts"),
        ({"prompt": ["a"]}, "has prompt; give context and continuation, or .* .or name the columns."),
        ({"text": pa.array([], pa.string())}, "holds no rows"),
    ],
)
def test_a_table_that_cannot_be_scored(tiny: Model, tmp_path: Path, columns: dict, message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(ArgumentError, match=f"t.parquet: .*{message}"):
        score_dataset(tiny, tmp_path / "t.parquet", tmp_path / "a.jsonl")


def test_a_table_with_nulls(tiny: Model, tmp_path: Path) -> None:
    pq.write_table(pa.table({"context": ["in", "in"], "choices": [None, [" the", None]]}), tmp_path / "t.parquet")
    done = score_dataset(tiny, tmp_path / "t.parquet", tmp_path / "a.jsonl")
    assert [row["error"] for row in read(Path(done.errors or ""))] == [
        "choices is null; give a list of texts",
        'choices is [" the", null]; give a list of texts',
    ]


def test_files_that_cannot_be_read(tiny: Model, tmp_path: Path, lines) -> None:
    with pytest.raises(ArgumentError, match="none.jsonl: cannot be read: No such file"):
        score_dataset(tiny, tmp_path / "none.jsonl", tmp_path / "a.jsonl")
    with pytest.raises(ArgumentError, match="cannot be read: Is a directory"):
        score_dataset(tiny, tmp_path, tmp_path / "a.jsonl")
    with pytest.raises(ArgumentError, match="rows.parquet: cannot be read as Parquet: "):
        score_dataset(tiny, lines(GOOD, name="rows.parquet"), tmp_path / "a.jsonl")
    path = tmp_path / "cut.parquet"
    pq.write_table(pa.table({"text": [f"{i} in the end" for i in range(5000)]}), path, compression="none")
    data = bytearray(path.read_bytes())
    data[1000:40_000] = b"\xff" * 39_000
    path.write_bytes(data)
    with pytest.raises(ArgumentError, match="cut.parquet: cannot be read as Parquet: "):
        score_dataset(tiny, path, tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["scores", "scores.csv", "scores.jsonl.gz"])
def test_an_output_of_no_format_is_refused(tiny: Model, tmp_path: Path, lines, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: results are written as .jsonl or .parquet"):
        score_dataset(tiny, lines(GOOD), tmp_path / name)
    with pytest.raises(ArgumentError, match="there is no folder"):
        score_dataset(tiny, lines(GOOD), tmp_path / "no" / "a.jsonl")


def test_no_pyarrow_is_one_line(tiny: Model, tmp_path: Path, lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "minfer_jax.scoring.dataset.parquet", raising=False)
    monkeypatch.delattr("minfer_jax.scoring.dataset.parquet", raising=False)
    with pytest.raises(UnsupportedError, match=r"a.parquet: Parquet needs pyarrow: pip install pyarrow"):
        score_dataset(tiny, lines(GOOD), tmp_path / "a.parquet")
    assert score_dataset(tiny, lines(GOOD), tmp_path / "a.jsonl").scored == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"context": "a"}, "columns are named for context; name those of context and continuation, or "),
        ({"text": "a", "continuation": "b"}, "columns are named for continuation and text; name"),
        ({"choices": "a", "continuation": "b"}, "columns are named for continuation and choices; name"),
        ({"text": ""}, "the column of text is ''; give its name"),
        ({"text": 5}, "the column of text is 5; give its name"),
        ({"id": ""}, "the column of id is ''; give its name"),
    ],
)
def test_columns_of_no_form(names: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Columns(**names)


def test_arguments(tiny: Model, tmp_path: Path, lines) -> None:
    for options, message in [
        ({"shard_rows": 0}, "shard_rows is 0"),
        ({"columns": "text"}, "columns is 'text'; give Columns"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            score_dataset(tiny, lines(GOOD), tmp_path / "a.jsonl", **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="source is 5; give the path"):
        score_dataset(tiny, 5, tmp_path / "a.jsonl")  # pyright: ignore[reportArgumentType]
