"""Results as JSON, and the progress bar."""

import json
import sys

import pytest

from minfer_jax.model import Model
from minfer_jax.scoring import multiple_choice, perplexity, score, score_texts


def test_results_go_to_json(tiny_model: Model) -> None:
    results = [
        score(tiny_model, [("in the", " end")])[0],
        score_texts(tiny_model, ["in the end"])[0],
        multiple_choice(tiny_model, "in the", [" end", " inner"]),
        perplexity(tiny_model, "the " * 100, n_ctx=16),
        perplexity(tiny_model, "the " * 100, protocol="rolling"),
    ]
    for result in results:
        record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert record == result.to_dict()
    assert results[2].to_dict()["scores"][0]["logprob"] == results[2].sums[0]


@pytest.mark.parametrize(
    ("terminal", "wanted", "shown"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
def test_progress_only_on_a_terminal(
    tiny_model: Model, capsys: pytest.CaptureFixture, monkeypatch, terminal: bool, wanted: bool | None, shown: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    score(tiny_model, [("in the", " end")] * 3, progress=wanted)
    out, err = capsys.readouterr()
    assert out == "" and ("3/3" in err) == shown
