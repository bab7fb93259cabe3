"""Scoring rows so that a bad one harms no other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from minfer_jax.errors import ArgumentError, TokenizerError, naming
from minfer_jax.model import Model
from minfer_jax.scoring.choice import encode_choices, rank
from minfer_jax.scoring.pairs import EncodedPair, encode_that_fits
from minfer_jax.scoring.results import MultipleChoice, Score, TextScore
from minfer_jax.scoring.rows import BadRow, Row
from minfer_jax.scoring.texts import sequences_as_finished, text_score
from minfer_jax.scoring.tokens import id_pairs_as_finished

Result = Score | MultipleChoice | TextScore


@dataclass(frozen=True)
class EncodedRow:
    """A row as token ids: those of a text, or pairs, one for each continuation."""

    row: Row
    text: list[int] | None = None
    pairs: Sequence[EncodedPair] = ()


def encode_row(model: Model, row: Row | BadRow, parse_special: bool) -> EncodedRow | BadRow:
    """The ids of a row; a bad row where there are none to score."""
    if isinstance(row, BadRow):
        return row
    try:
        if row.kind == "text":
            (text,) = row.values
            return EncodedRow(row, text=model.tokenizer.encode(text, parse_special=parse_special))
        context, scored = row.values
        if row.kind == "choices":
            return EncodedRow(row, pairs=encode_choices(model, context, scored, parse_special))
        return EncodedRow(row, pairs=[encode_that_fits(model, context, scored, parse_special)])
    except (ArgumentError, TokenizerError) as error:
        return BadRow(row.number, str(error), row.id)


def score_rows(
    model: Model, rows: Iterable[EncodedRow | BadRow], done: Callable[[int], object] = lambda n: None
) -> list[tuple[Row, Result] | BadRow]:
    """Each row with its result, or as a bad one, in order. done: hears how many rows have been finished.

    Raises NumericsError naming the row.
    """
    rows = list(rows)
    outcomes: list[tuple[Row, Result] | BadRow | None] = [row if isinstance(row, BadRow) else None for row in rows]
    done(sum(outcome is not None for outcome in outcomes))
    good = {place: row for place, row in enumerate(rows) if isinstance(row, EncodedRow)}
    for place, result in chain(_texts_as_finished(model, good), _pairs_as_finished(model, good)):
        outcomes[place] = good[place].row, result
        done(1)
    return [outcome for outcome in outcomes if outcome is not None]


def _texts_as_finished(model: Model, rows: dict[int, EncodedRow]) -> Iterator[tuple[int, TextScore]]:
    texts = [(place, row.row.number, row.text) for place, row in rows.items() if row.text is not None]
    sequences = [ids for _, _, ids in texts]
    for i, values in sequences_as_finished(
        model, sequences, model.config.n_ctx, None, False, lambda i: naming("row", texts[i][1])
    ):
        yield texts[i][0], text_score(model, sequences[i], values)


def _pairs_as_finished(model: Model, rows: dict[int, EncodedRow]) -> Iterator[tuple[int, Score | MultipleChoice]]:
    owners = [(place, j) for place, row in rows.items() for j in range(len(row.pairs))]
    pairs = [rows[place].pairs[j] for place, j in owners]
    scores: dict[int, dict[int, Score]] = {place: {} for place, _ in owners}
    ids = [(pair.context, pair.continuation) for pair in pairs]
    for i, score in id_pairs_as_finished(model, ids, None, lambda i: naming("row", rows[owners[i][0]].row.number)):
        place, j = owners[i]
        scores[place][j] = replace(score, merged=pairs[i].merged).read_by(model.tokenizer)
        if len(scores[place]) == len(rows[place].pairs):
            mine, row = scores.pop(place), rows[place].row
            context, scored = row.values
            ordered = [mine[j] for j in range(len(mine))]
            yield place, rank(context, scored, ordered) if row.kind == "choices" else ordered[0]
