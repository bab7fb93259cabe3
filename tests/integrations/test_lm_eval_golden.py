"""Whole tasks, request by request, against the harness's own `hf` model on the same weights: see ``make_golden.py``."""

import json
from pathlib import Path
from typing import Any

import pytest

from minfer_jax.load import load
from minfer_jax.scoring import score_tokens
from tests.integrations.make_golden import MAX_LENGTH, RUNS, answers

pytest.importorskip("lm_eval", reason="needs the extra: pip install '.[eval]'")

from minfer_jax.integrations.lm_eval import MinferLM  # noqa: E402

GOLDEN = json.loads((Path(__file__).parent.parent / "data" / "lm_eval.json").read_text(encoding="utf-8"))
LIMIT = {"exact": 0.003, "default": 0.02}
"""Largest difference of one answer, in nats; the longest is a sum over 153 tokens, by torch in float32."""
ACROSS = "mj_across"
"""The task where a token spans the boundary, and the harness's own ids are not those of the text."""


@pytest.fixture(scope="module", params=LIMIT)
def precision(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(precision: str, smol135: Path) -> MinferLM:
    return MinferLM(load(smol135, precision=precision, n_ctx=MAX_LENGTH))


@pytest.fixture(scope="module")
def ours(model: MinferLM, evaluate) -> dict[str, Any]:
    """Our answers in the form of the golden ones."""
    made = {name: answers(evaluate(model, tasks, **options)) for name, (tasks, options) in RUNS.items()}
    return json.loads(json.dumps(made, default=str))


@pytest.mark.parametrize("run", RUNS)
def test_every_request_is_asked_and_answered_as_by_hf(ours, precision: str, run: str) -> None:
    for task, documents in GOLDEN[run]["samples"].items():
        for i, (theirs, mine) in enumerate(zip(documents, ours[run]["samples"][task], strict=True)):
            assert mine["asked"] == theirs["asked"], (task, i)
            if task == ACROSS:
                continue
            for want, got in zip(theirs["answered"], mine["answered"], strict=True):
                if isinstance(want, str):
                    assert got == want, (task, i)
                elif isinstance(want, list):
                    assert got == [pytest.approx(want[0], abs=LIMIT[precision]), want[1]], (task, i)
                else:
                    assert got == pytest.approx(want, abs=LIMIT[precision]), (task, i)


@pytest.mark.parametrize("run", RUNS)
def test_choices_and_metrics_are_those_of_hf(ours, run: str) -> None:
    for task, metrics in GOLDEN[run]["results"].items():
        mine = metrics if task == ACROSS else ours[run]["results"][task]
        for name, value in metrics.items():
            assert mine[name] == (pytest.approx(value, rel=1e-3) if isinstance(value, float) else value), (task, name)


def test_where_a_token_spans_the_boundary_the_text_is_what_counts(ours, model: MinferLM) -> None:
    # The harness drops the ids that lie across: it scores "vable" after "The word is un".
    ((theirs,), (mine,)) = (side["plain"]["samples"][ACROSS] for side in (GOLDEN, ours))
    assert mine["asked"] == theirs["asked"] == [["The word is un", "believable"]]
    ids = model.tok_encode("The word is unbelievable")
    (expected,) = score_tokens(model.model, [(ids[:-1], ids[-1:])])
    assert mine["answered"][0] == [pytest.approx(expected.logprob, abs=1e-5), expected.is_greedy]
    assert abs(mine["answered"][0][0] - theirs["answered"][0][0]) > 1
