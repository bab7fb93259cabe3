"""Every padding decision of the package: which shapes programs are compiled for, and how work is packed into them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from minfer_jax.runtime.keys import Sampling, Shape
from minfer_jax.runtime.prefixes import Row, fill_row, lay_out
from minfer_jax.runtime.readback import Route

_LADDER = tuple(sorted({2**i for i in range(31)} | {3 * 2**i for i in range(3, 29)}))  # 1 2 4 8 16 24 32 48 64 ..
_TOKENS = tuple(sorted({*_LADDER[4:], *(n << i for i in range(6, 28) for n in (5, 7))}))  # 16 24 .. 256 320 384 448 ..
_MIN_TOKENS = _TOKENS[0]

PREFILL_CHUNK = {"cpu": 512, "gpu": 2048}
"""Longer prompts go through the model this many tokens at a time, by backend."""

BATCH_TOKENS = {"cpu": 4096, "gpu": 16384}
"""Token slots of one scoring batch."""

LOGIT_ROWS = 128
"""Most rows whose logits are whole at a time, where whole distributions are wanted."""

MAX_STEPS = 32
"""Most tokens that one program call generates."""

_STEPS = (2, 8, MAX_STEPS)


def round_up(n: int, at_least: int = 1) -> int:
    """The next size on the ladder of powers of two and, from 16, the sizes half-way between them."""
    return _LADDER[bisect_left(_LADDER, max(n, at_least))]


def token_bucket(n: int) -> int:
    """Padded length of a run of n tokens (n >= 1): two sizes an octave from 16, where at most a third is padding, and
    four from 256, where at most a fifth is."""
    return _TOKENS[bisect_left(_TOKENS, n)]


def row_bucket(n: int) -> int:
    """Padded number of sequences in a scoring batch: a power of two."""
    return 1 << (n - 1).bit_length()


def cache_bucket(n: int, n_ctx: int, outgrown: int = 0) -> int:
    """Length of a KV cache for n positions: on the ladder from 256, never beyond the context window. A cache that has
    outgrown its length is at least doubled, so that a long text copies it a few times only."""
    return min(round_up(max(n, 2 * outgrown), 256), n_ctx)


def prompt_columns(longest: int, rows: int, backend: str) -> list[int]:
    """Where the chunks of ``rows`` prompts end; the first takes what is left over, the others are full. All rows
    together have no more slots in a chunk than a scoring batch. One column alone would pass for a decode step, whose
    kernels round otherwise: it has half a chunk with it."""
    most = by_backend(PREFILL_CHUNK, backend)
    chunk = max(_MIN_TOKENS, min(most, _floor_power(by_backend(BATCH_TOKENS, backend) // rows)))
    ends = list(range((longest - 1) % chunk + 1, longest + 1, chunk))
    return [1 + chunk // 2, *ends[1:]] if ends[0] == 1 < longest else ends


def by_backend(sizes: dict[str, int], backend: str) -> int:
    return sizes.get(backend, sizes["cpu"])


def logit_columns(first: int, n: int) -> list[tuple[int, int]]:
    """The pieces (begin, end) in which tokens go through a cache from place ``first`` to n, whose logits are wanted:
    LOGIT_ROWS each at most."""
    return [(begin, min(n, begin + LOGIT_ROWS)) for begin in range(first, n, LOGIT_ROWS)]


def last_column(rows: int, tokens: int) -> np.ndarray | None:
    """tail_ids [rows] of the last token of each row; None where it is the only one."""
    return None if tokens == 1 else np.arange(1, rows + 1, dtype=np.int32) * tokens - 1


def pad_ended(ended: np.ndarray, rows: int) -> np.ndarray:
    """bool [rows] from bool [n]: rows of padding have ended."""
    return ended if len(ended) == rows else np.pad(ended, (0, rows - len(ended)), constant_values=True)


def trip_count(n: int, early_exit: bool) -> tuple[int, int]:
    """Steps of the decode program that is to give n <= MAX_STEPS tokens, and how many of them it takes: with an early
    exit one program serves every n, without one it takes them all."""
    if early_exit:
        return MAX_STEPS, n
    steps = next(steps for steps in _STEPS if steps >= n)
    return steps, steps


@lru_cache(1024)  # asked at every step
def forward_shapes(
    batch: int, tokens: int, n_out: int, cache_length: int, cache_dtype: np.dtype | None, readback: Route
) -> tuple[Shape, Shape]:
    """The exact shape of a run of tokens through the model, and its bucket.

    A cache (length 0: none) fixes the rows; one token a row with a cache is decoding and never padded.
    """
    kind = "decode" if tokens == 1 and cache_length else "prefill"
    dtype = cache_dtype.name if cache_dtype else "float32"
    exact = Shape(kind, batch, tokens, n_out, cache_length, cache_dtype=dtype, readback=readback)
    if kind == "decode":
        return exact, exact
    padded = token_bucket(tokens)
    if cache_length:
        padded = min(padded, cache_length)
    else:
        batch = round_up(batch)
    slots = batch * padded
    n_out = slots if n_out == exact.slots else min(round_up(n_out), slots - 1)  # tail rows stay fewer than all
    return exact, replace(exact, batch=batch, tokens=padded, n_out=n_out)


@lru_cache(1024)
def decode_shapes(
    n: int, rows: int, cache_length: int, cache_dtype: np.dtype, steps: int, sampling: Sampling, readback: Route
) -> tuple[Shape, Shape]:
    """The exact shape of many tokens for n sequences, and its bucket, which has the rows that the cache has."""
    exact = Shape("decode", n, 1, n, cache_length, steps, sampling, cache_dtype.name, readback)
    return exact, replace(exact, batch=rows, n_out=rows)


def pad_run(
    tokens: np.ndarray, positions: np.ndarray, tail_ids: np.ndarray | None, shape: Shape
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """A run [B, T] and its tail_ids [n_out], padded to a shape: position -1 to the right and below, row 0 of the
    logits once more."""
    B, T = tokens.shape
    if (B, T) == (shape.batch, shape.tokens) and (tail_ids is None or len(tail_ids) == shape.n_out):
        return tokens, positions, tail_ids
    fill = ((0, shape.batch - B), (0, shape.tokens - T))
    if tail_ids is not None:
        moved = tail_ids // T * shape.tokens + tail_ids % T
        tail_ids = np.pad(moved.astype(np.int32), (0, shape.n_out - len(moved)))
    return np.pad(tokens, fill), np.pad(positions, fill, constant_values=-1), tail_ids


def unpad_run(logits: Any, shape: Shape, exact: Shape) -> Any:
    """Logits [n_out, vocab] of a run that was padded to a shape, cut to the exact one: [B, T, vocab], or [n_out, vocab]
    of tail rows."""
    if exact.n_out < exact.slots:
        return logits[: exact.n_out]
    return logits.reshape(shape.batch, shape.tokens, -1)[: exact.batch, : exact.tokens]


@dataclass(frozen=True)
class Batch:
    """Sequences that are scored by one program call: its rows, and its shape as it is (exact) and padded (bucket)."""

    rows: tuple[Row, ...]
    exact: Shape
    bucket: Shape

    def results(self, shape: Shape) -> list[tuple[int, slice]]:
        """For each sequence its index in the caller's list, and its slice of the n_out rows of results."""
        found, end = [], 0
        for row, members in enumerate(self.rows):
            for member in members:
                if shape.n_out == shape.slots:
                    end = row * shape.tokens + member.end
                else:
                    end += member.n_scored
                found.append((member.index, slice(end - member.n_scored, end)))
        return found

    def fill(self, shape: Shape) -> "Filled":
        """The arrays at one of the two shapes."""
        tokens = np.zeros((shape.batch, shape.tokens), np.int32)
        positions, until = np.full_like(tokens, -1), np.full_like(tokens, shape.tokens)
        tail_ids, targets = np.zeros(shape.n_out, np.int32), np.zeros(shape.n_out, np.int32)
        results = iter(self.results(shape))
        for row, members in enumerate(self.rows):
            fill_row(members, tokens[row], positions[row], until[row])
            for member, (_, here) in zip(members, results, strict=False):
                tail_ids[here] = row * shape.tokens + member.places[-member.n_scored :]
                targets[here] = member.ids[-member.n_scored :]
        return Filled(tokens, positions, tail_ids if shape.n_out < shape.slots else None, targets, until)


@dataclass(frozen=True)
class Filled:
    """Padded arrays for one scoring program call.

    tokens, positions: [B, T] int32 (positions -1 on padding). tail_ids: [n_out] int32, the rows of the B * T that are
    scored, padded with 0; None when all are, and n_out = B * T. targets: [n_out] int32, the id to score after each.
    until: [B, T] int32, the place in its row up to which a token is seen.
    """

    tokens: np.ndarray
    positions: np.ndarray
    tail_ids: np.ndarray | None
    targets: np.ndarray
    until: np.ndarray


def pack_sequences(
    sequences: Sequence[Sequence[int]],
    n_scored: Sequence[int],
    batch_tokens: int = BATCH_TOKENS["cpu"],
    share: bool = False,
) -> Iterator[Batch]:
    """Sequences, in rows that are sorted from long to short, in batches of few distinct shapes.

    sequences: at least two ids each; all but the last are input. n_scored: how many of each sequence's last ids are
    targets (1 <= n_scored < its length). share: put those that begin alike into one row (``prefixes.py``).

    A batch's length is the bucket of its longest row; it holds what fits ``batch_tokens`` slots (one sequence
    always does) and is longer than a quarter of that. Its rows are a power of two, and its scored rows that share of
    all slots, 1/16 to 1, which holds them. Only a call that is one batch has an exact shape: where there are more,
    their shapes are choices made here, not by the caller, and each is its own bucket.
    """
    rows = lay_out(sequences, n_scored, _TOKENS[max(0, bisect_right(_TOKENS, batch_tokens) - 1)], share)
    rows.sort(key=lambda row: (-row[-1].end, row[0].index))
    start = 0
    while start < len(rows):
        longest = rows[start][-1].end
        T = token_bucket(longest)
        end = min(len(rows), start + _floor_power(batch_tokens // T))
        while T > _MIN_TOKENS and rows[end - 1][-1].end <= T // 4:
            end -= 1
        taken = tuple(rows[start:end])
        n_out = sum(member.n_scored for row in taken for member in row)
        padded = row_bucket(len(taken))
        bucket = Shape("score", padded, T, _scored_bucket(n_out, padded * T))
        # At least two columns: see prompt_columns.
        exact = Shape("score", len(taken), max(2, longest), n_out) if len(taken) == len(rows) else bucket
        yield Batch(taken, exact, bucket)
        start = end


def _scored_bucket(n: int, slots: int) -> int:
    share = 16
    while share > 1 and (n * share > slots or slots // share < _MIN_TOKENS):
        share //= 2
    return slots // share


def _floor_power(n: int) -> int:
    return 1 << (max(1, n).bit_length() - 1)
