"""Texts that begin alike in one row of a batch, so that the model reads what they share once.

A row is a walk through the tree of its texts' prefixes: every text branches off the one before it, and what it adds
stands behind everything that came so far::

    ids        the  sky  is  blue  .    today   .    grey  .        (the sky is blue. / .. is today. / .. is grey.)
    positions    0    1   2     3  4  ..    3   4  ..   3  4
    until      all  all all  at today     at grey     all all

A token is seen by what follows in the row until its text is left (``forward.hidden_states``), and it keeps its position
in the text. Its place in the row differs from that by a multiple of _LANES, which is why sharing changes no bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

_LANES = 16  # a query's weights are summed key % 16 by key % 16, see native/attention_kernel.h
_LEAST = 16  # a shorter prefix is not worth it: as many places are lost to keep to multiples of _LANES


@dataclass(frozen=True)
class Member:
    """A sequence in a row. All of its ids but the last are input, and the last ``n_scored`` ids are targets.

    index: in the caller's list. shared: how many of its inputs the member before it has as well, in the same places.
    places: int32 [inputs], where in the row its inputs are.
    """

    index: int
    ids: Sequence[int]
    n_scored: int
    shared: int
    places: np.ndarray

    @property
    def end(self) -> int:
        """The place behind its last input, and behind all that came before."""
        return int(self.places[-1]) + 1


Row = tuple[Member, ...]


def lay_out(sequences: Sequence[Sequence[int]], n_scored: Sequence[int], most_places: int, share: bool) -> list[Row]:
    """Sequences (two ids each at least) in rows: one a row, or, to share, as many that begin alike as have room.

    No member shares inputs whose outputs it needs. A row of more than one member has ``most_places`` at most.
    """
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i][:-1])) if share else range(len(sequences))
    rows: list[list[Member]] = []
    for i in order:
        ids, inputs = sequences[i], len(sequences[i]) - 1
        if share and rows:
            last = rows[-1][-1]
            shared = min(_common(last.ids[:-1], ids), inputs - n_scored[i])
            start = last.end + (shared - last.end) % _LANES
            if shared >= _LEAST and start + inputs - shared <= most_places:
                new = np.arange(start, start + inputs - shared, dtype=np.int32)
                places = np.concatenate([last.places[:shared], new])
                rows[-1].append(Member(i, ids, n_scored[i], shared, places))
                continue
        rows.append([Member(i, ids, n_scored[i], 0, np.arange(inputs, dtype=np.int32))])
    return [tuple(row) for row in rows]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first ids are the same."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def fill_row(row: Row, tokens: np.ndarray, positions: np.ndarray, until: np.ndarray) -> None:
    """Write a row's tokens, positions and ends of sight into [T] each; what it does not use is left alone."""
    for member in row:
        new = member.places[member.shared :]
        tokens[new] = member.ids[member.shared : -1]
        positions[new] = np.arange(member.shared, len(member.places))
    for member, following in pairwise(row):
        until[member.places[following.shared :]] = following.places[following.shared]
