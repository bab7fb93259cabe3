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


def round_up(n: int, at_least: int = 1) -> int:
    """The next size on the ladder of powers of two and their halves-between: at most a third is padding."""
    return _LADDER[bisect_left(_LADDER, max(n, at_least))]


def token_bucket(n: int) -> int:
    """Padded length of a run of n tokens (n >= 1)."""
    return 1 if n == 1 else round_up(n, _MIN_TOKENS)


def cache_bucket(n: int, n_ctx: int) -> int:
    """Length of a KV cache for n positions: on the ladder from 256, never beyond the context window."""
    return min(round_up(n, 256), n_ctx)


@dataclass(frozen=True)
class Batch:
    """Padded arrays for one program call.

    tokens, positions: [B, T] int32 (positions -1 on padding). tail_ids: [n_out] int32 into the B * T rows, padded
    with 0. items: for each sequence in the batch, its index in the caller's list and its slice of the n_out rows.
    """

    tokens: np.ndarray
    positions: np.ndarray
    tail_ids: np.ndarray
    items: tuple[tuple[int, slice], ...]


def pack_sequences(
    sequences: Sequence[Sequence[int]], n_tail: Sequence[int], batch_tokens: int = BATCH_TOKENS
) -> Iterator[Batch]:
    """Sequences (each at least one token), longest first, in batches of few distinct shapes.

    n_tail: how many of each sequence's last tokens are wanted as rows. A batch's length is the bucket of its longest
    member, its rows fill ``batch_tokens``, and the number of wanted rows is a bucket again.
    """
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    start = 0
    while start < len(order):
        T = token_bucket(len(sequences[order[start]]))
        rows = min(round_up(len(order) - start), _floor_power(max(1, batch_tokens // T)))
        members = order[start : start + rows]
        start += len(members)
        yield _pack(members, sequences, n_tail, rows, T)


def _pack(
    members: Sequence[int], sequences: Sequence[Sequence[int]], n_tail: Sequence[int], rows: int, T: int
) -> Batch:
    tokens = np.zeros((rows, T), np.int32)
    positions = np.full((rows, T), -1, np.int32)
    wanted: list[np.ndarray] = []
    items = []
    done = 0
    for row, index in enumerate(members):
        n = len(sequences[index])
        tokens[row, :n] = sequences[index]
        positions[row, :n] = np.arange(n)
        wanted.append(row * T + np.arange(n - n_tail[index], n))
        items.append((index, slice(done, done + n_tail[index])))
        done += n_tail[index]
    tail_ids = np.zeros(min(round_up(done, _MIN_TOKENS), rows * T), np.int32)
    tail_ids[:done] = np.concatenate(wanted)
    return Batch(tokens, positions, tail_ids, tuple(items))


def _floor_power(n: int) -> int:
    return 1 << (n.bit_length() - 1)
