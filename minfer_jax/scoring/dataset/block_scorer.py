"""From a block of rows to its shard, with a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minfer_jax.model import Model
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.formats import open_source
from minfer_jax.scoring.dataset.job import Job
from minfer_jax.scoring.dataset.json_lines import as_fields, json_lines
from minfer_jax.scoring.dataset.shards import Shard
from minfer_jax.scoring.results import MultipleChoice
from minfer_jax.scoring.row_scores import EncodedRow, Result, encode_row, score_rows
from minfer_jax.scoring.rows import BadRow, Row, as_row


class BlockScorer:
    """Makes the shard of a block, with a model."""

    def __init__(self, model: Model, job: Job) -> None:
        self._model, self._job = model, job
        self._source = open_source(job.source, job.columns)
        self._source.form(job.columns)

    def encode(self, block: Block) -> list[EncodedRow | BadRow]:
        """The rows of a block, as ids."""
        rows = map(self._row, self._source.read(block))
        return [encode_row(self._model, row, self._job.parse_special) for row in rows]

    def score(
        self, block: Block, rows: list[EncodedRow | BadRow], done: Callable[[int], object] = lambda n: None
    ) -> Shard:
        """The shard of a block's rows. done: hears how many have been finished."""
        outcomes = score_rows(self._model, rows, done)
        good = [outcome for outcome in outcomes if not isinstance(outcome, BadRow)]
        bad = [outcome for outcome in outcomes if isinstance(outcome, BadRow)]
        errors = json_lines(as_fields(row) for row in bad)
        return Shard(block.index, self._job.output.shard(good), errors, _counts(good, len(bad)))

    def _row(self, item: tuple[int, Mapping[str, Any]] | BadRow) -> Row | BadRow:
        if isinstance(item, BadRow):
            return item
        number, fields = item
        return as_row(number, fields, self._job.columns, self._job.form.kind)


def _counts(good: Sequence[tuple[Row, Result]], n_bad: int) -> dict[str, int]:
    scores = [result.scores if isinstance(result, MultipleChoice) else [result] for _, result in good]
    flagged = {
        flag: sum(any(getattr(score, flag, False) for score in of_row) for of_row in scores)
        for flag in ("truncated", "merged")
    }
    flagged["empty"] = sum(any(not score.tokens for score in of_row) for of_row in scores)
    tokens = sum(value is not None for of_row in scores for score in of_row for value in score.token_logprobs)
    return {"rows": len(good) + n_bad, "scored": len(good), "bad": n_bad, "tokens": tokens, **flagged}
