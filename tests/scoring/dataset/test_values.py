"""Files of scores against llama.cpp's numbers, row by row, in both formats."""

import datetime
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minfer_jax import ArgumentError, Columns, score_dataset
from minfer_jax.model import Model
from minfer_jax.scoring.dataset.formats import open_source
from tests.scoring.dataset.conftest import read

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "cli.json").read_text(encoding="utf-8"))
NEAR = 1e-3


def results(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read(path)


@pytest.mark.parametrize(
    "ends", [("jsonl", "jsonl"), ("jsonl", "parquet"), ("parquet", "jsonl"), ("parquet", "parquet")]
)
def test_pairs(smol_exact: Model, tmp_path: Path, lines, ends: tuple[str, str]) -> None:
    pairs = GOLDEN["pairs"] * 3
    rows = [{"q": p["context"], "a": p["continuation"], "text": 7, "key": 100 + i} for i, p in enumerate(pairs)]
    source = lines(*rows)
    if ends[0] == "parquet":
        source = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source, row_group_size=4)
    target = tmp_path / f"scores.{ends[1]}"
    done = score_dataset(
        smol_exact, source, target, columns=Columns(context="q", continuation="a", id="key"), shard_rows=2
    )
    got = results(target)
    assert [row["row"] for row in got] == list(range(1, 10))
    as_text = ends == ("jsonl", "parquet")  # where JSON has no type for a column
    assert [row["id"] for row in got] == [str(100 + i) if as_text else 100 + i for i in range(9)]
    for row, want in zip(got, pairs, strict=True):
        assert row["logprob"] == pytest.approx(want["sum_logprob"], abs=NEAR)
        assert sum(row["token_logprobs"]) == pytest.approx(row["logprob"], abs=1e-5)
        assert row["tokens"] == want["continuation_ids"] and row["is_greedy"] is want["is_greedy"]
    assert (done.rows, done.scored, done.bad, done.resumed, done.errors) == (9, 9, 0, 0, None)
    assert done.tokens == sum(len(p["continuation_ids"]) for p in pairs)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        {"rows.jsonl", source.name, target.name, f"{target.name}.manifest.json"}
    )


@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_texts(smol_exact: Model, tmp_path: Path, lines, end: str) -> None:
    want = GOLDEN["text"]
    target = tmp_path / f"scores.{end}"
    score_dataset(smol_exact, lines({"text": want["text"]}, {"text": ""}), target)
    row, empty = results(target)
    assert row["tokens"] == want["ids"] and row["prefix"] == [] and row["windows"] == 1
    assert row["token_logprobs"][0] is None
    assert row["token_logprobs"][1:] == pytest.approx(want["token_logprobs"][1:], abs=NEAR)
    assert empty["tokens"] == empty["token_logprobs"] == [] and empty["logprob"] == 0


@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_choices(smol_exact: Model, tmp_path: Path, lines, end: str) -> None:
    want = GOLDEN["animal"]
    target = tmp_path / f"scores.{end}"
    score_dataset(smol_exact, lines({"context": want["context"], "choices": want["choices"]}), target)
    (row,) = results(target)
    assert row["choices"] == want["choices"] and row["context"] == want["context"]
    assert row["per_byte"] == pytest.approx([s["per_byte"] for s in want["scores"]], abs=NEAR)
    assert row["best_by_sum"] == want["best_by_sum"] and row["best_by_byte"] == want["best_by_per_byte"]
    assert [s["logprob"] for s in row["scores"]] == row["sums"]


def test_the_manifest_says_which_file_by_what_rule(smol_exact: Model, smol135: Path, tmp_path: Path, lines) -> None:
    source = lines({"text": "Bees make honey."}, {"text": 5})
    score_dataset(smol_exact, source, tmp_path / "a.jsonl")
    score_dataset(smol_exact, source, tmp_path / "a.parquet")
    manifest = json.loads((tmp_path / "a.jsonl.manifest.json").read_bytes())
    model = manifest["model"]
    assert model["sha256"] == GOLDEN["sha256"] and model["file"] == [smol135.name]
    assert model["quantisation"] == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert model["n_ctx"] == 8192 and model["backend"] == "cpu" and model["versions"].keys() >= {"minfer-jax", "jax"}
    assert manifest["source"]["rows"] == 2 and manifest["source"]["bytes"] == source.stat().st_size
    assert manifest["form"]["fields"] == {"text": "text"} and manifest["protocol"]
    assert manifest["counts"]["scored"] == 1 and manifest["counts"]["bad"] == 1
    in_file = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"minfer_jax"])
    assert in_file["model"] == model and in_file["format"] == ".parquet"


def test_ids_of_any_type(tiny: Model, tmp_path: Path, lines) -> None:
    ids = [None, 1, "a", "é\nb", {"k": [1]}, "\ud800", True]
    source = lines(*({"id": i, "text": "the"} for i in ids), {"text": "the"})
    score_dataset(tiny, source, tmp_path / "a.jsonl")
    assert [row.get("id") for row in read(tmp_path / "a.jsonl")] == [*ids, None]
    score_dataset(tiny, source, tmp_path / "a.parquet")
    got = pq.read_table(tmp_path / "a.parquet").column("id").to_pylist()
    assert got == [None, "1", "a", "é\nb", '{"k": [1]}', '"\\ud800"', "true", None]
    day, nan = datetime.date(2026, 11, 30), math.nan
    for values, in_json, in_parquet in [
        ([1.5, nan, None], [1.5, "nan", None], ["1.5", "nan", None]),
        ([day, None, day], ["2026-11-30", None, "2026-11-30"], ["2026-11-30", None, "2026-11-30"]),
        ([b"a", b"b", None], ["b'a'", "b'b'", None], ["b'a'", "b'b'", None]),
    ]:
        pq.write_table(pa.table({"id": pa.array(values), "text": ["the"] * 3}), tmp_path / "r.parquet")
        for end, wanted in (("jsonl", in_json), ("parquet", in_parquet)):
            target = tmp_path / f"{in_json[0]}.{end}"
            score_dataset(tiny, tmp_path / "r.parquet", target)
            assert [row.get("id") for row in results(target)] == wanted


def test_a_column_of_ids_that_is_named_is_there(tiny: Model, tmp_path: Path, lines) -> None:
    named = Columns(id="key")
    with pytest.raises(ArgumentError, match="rows.jsonl: line 1 has no 'key', the column of ids"):
        score_dataset(tiny, lines({"id": 1, "text": "the"}), tmp_path / "a.jsonl", columns=named)
    with pytest.raises(ArgumentError, match="t.parquet: has no column 'key' of ids; its columns are text"):
        score_dataset(tiny, _table(tmp_path, pa.array(["the"])), tmp_path / "a.jsonl", columns=named)
    twice = pa.Table.from_arrays([pa.array(["the"]), pa.array(["in"])], ["text", "text"])
    pq.write_table(twice, tmp_path / "t.parquet")
    with pytest.raises(ArgumentError, match="t.parquet: has 2 columns 'text'; name each differently"):
        score_dataset(tiny, tmp_path / "t.parquet", tmp_path / "a.jsonl")


def test_columns_of_text_in_every_arrow_type(tiny: Model, tmp_path: Path) -> None:
    texts = ["in the end", "the inner", "end"]
    score_dataset(tiny, _table(tmp_path, pa.array(texts)), tmp_path / "want.jsonl")
    dictionary = pa.array(texts).dictionary_encode()
    for i, array in enumerate([pa.array(texts, pa.large_string()), pa.array(texts, pa.string_view()), dictionary]):
        score_dataset(tiny, _table(tmp_path, array), tmp_path / f"{i}.jsonl")
        assert read(tmp_path / f"{i}.jsonl") == read(tmp_path / "want.jsonl")


def _table(folder: Path, array: pa.Array) -> Path:
    pq.write_table(pa.table({"text": array}), folder / "t.parquet")
    return folder / "t.parquet"


def test_blocks_of_a_parquet_file_in_any_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(i) for i in range(1000)], "id": range(1000)}), tmp_path / "t.parquet", 300)
    source = open_source(tmp_path / "t.parquet", Columns())
    source.form(Columns())
    blocks, _ = source.index(70)
    assert sum(block.n_rows for block in blocks) == 1000 and blocks[-1].n_rows == 20
    for block in [blocks[i] for i in (3, 4, 14, 0, 4, 12, 13, 2)]:
        rows = [(number, fields["text"]) for number, fields in source.read(block)]
        assert rows == [(i + 1, str(i)) for i in range(block.offset, block.offset + block.n_rows)]
