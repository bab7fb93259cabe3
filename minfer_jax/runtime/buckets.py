"""Every padding decision of the package: which shapes programs are compiled for, and how work is packed into them."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_LADDER = tuple(sorted({2**i for i in range(31)} | {3 * 2**i for i in range(3, 29)}))  # 1 2 4 8 16 24 32 48 64 ..
_MIN_TOKENS = 16

PREFILL_CHUNK = 512
"""Longer prompts go through the model this many tokens at a time."""

BATCH_TOKENS = 4096
"""Token slots of one scoring batch."""


MAX_STEPS = 32
"""Most tokens that one program call generates."""

_STEPS = (2, 8, MAX_STEPS)


def round_up(n: int, at_least: int = 1) -> int:
    """The next size on the ladder of powers of two and, from 16, the sizes half-way between them."""
    return _LADDER[bisect_left(_LADDER, max(n, at_least))]


def token_bucket(n: int) -> int:
    """Padded length of a run of n tokens (n >= 1); from 16 at most a third is padding."""
    return round_up(n, _MIN_TOKENS)


def row_bucket(n: int) -> int:
    """Padded number of sequences side by side: a power of two."""
    return 1 << (n - 1).bit_length()


def cache_bucket(n: int, n_ctx: int, outgrown: int = 0) -> int:
    """Length of a KV cache for n positions: on the ladder from 256, never beyond the context window. A cache that has
    outgrown its length is at least doubled, so that a long text copies it a few times only."""
    return min(round_up(max(n, 2 * outgrown), 256), n_ctx)


def prompt_columns(longest: int) -> list[int]:
    """Where the chunks of a prompt end, for rows aligned to the right; the last is the padded width.

    The first chunk takes what PREFILL_CHUNK leaves over, padded to its bucket; the others are full.
    """
    first = (longest - 1) % PREFILL_CHUNK + 1
    return list(range(token_bucket(first), token_bucket(first) + longest - first + 1, PREFILL_CHUNK))


def steps_bucket(n: int) -> int:
    """Trip count of a decode program that is to give n <= MAX_STEPS tokens."""
    return next(steps for steps in _STEPS if steps >= n)


@dataclass(frozen=True)
class Batch:
    """Padded arrays for one scoring program call.

    tokens, positions: [B, T] int32 (positions -1 on padding). tail_ids: [n_out] int32, the rows of the B * T that are
    scored, padded with 0; None when all are, and n_out = B * T. targets: [n_out] int32, the id to score after each.
    items: for each sequence in the batch, its index in the caller's list and its slice of the n_out rows.
    """

    tokens: np.ndarray
    positions: np.ndarray
    tail_ids: np.ndarray | None
    targets: np.ndarray
    items: tuple[tuple[int, slice], ...]


def pack_sequences(
    sequences: Sequence[Sequence[int]], n_scored: Sequence[int], batch_tokens: int = BATCH_TOKENS
) -> Iterator[Batch]:
    """Sequences, longest first, in batches of few distinct shapes.

    sequences: at least two ids each; all but the last are input. n_scored: how many of each sequence's last ids are
    targets (1 <= n_scored < its length).

    A batch's length is the bucket of its longest member; it holds what fits ``batch_tokens`` slots (one sequence
    always does) and is longer than a quarter of that. Its rows are a power of two, and its scored rows that share of
    all slots, 1/16 to 1, which holds them.
    """
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    start = 0
    while start < len(order):
        T = token_bucket(len(sequences[order[start]]) - 1)
        end = min(len(order), start + _floor_power(max(1, batch_tokens // T)))
        while T > _MIN_TOKENS and len(sequences[order[end - 1]]) - 1 <= T // 4:
            end -= 1
        members = order[start:end]
        start = end
        yield _pack(members, sequences, n_scored, row_bucket(len(members)), T)


def _pack(
    members: Sequence[int], sequences: Sequence[Sequence[int]], n_scored: Sequence[int], rows: int, T: int
) -> Batch:
    tokens = np.zeros((rows, T), np.int32)
    positions = np.full((rows, T), -1, np.int32)
    n_out = _scored_bucket(sum(n_scored[index] for index in members), rows * T)
    every_row = n_out == rows * T
    tail_ids, targets = np.zeros(n_out, np.int32), np.zeros(n_out, np.int32)
    items = []
    done = 0
    for row, index in enumerate(members):
        ids = sequences[index]
        n, scored = len(ids) - 1, n_scored[index]
        tokens[row, :n] = ids[:-1]
        positions[row, :n] = np.arange(n)
        end = row * T + n
        here = slice(end - scored, end) if every_row else slice(done, done + scored)
        tail_ids[here] = np.arange(end - scored, end)
        targets[here] = ids[-scored:]
        items.append((index, here))
        done += scored
    return Batch(tokens, positions, None if every_row else tail_ids, targets, tuple(items))


def _scored_bucket(n: int, slots: int) -> int:
    share = 16
    while share > 1 and (n * share > slots or slots // share < _MIN_TOKENS):
        share //= 2
    return slots // share


def _floor_power(n: int) -> int:
    return 1 << (n.bit_length() - 1)
