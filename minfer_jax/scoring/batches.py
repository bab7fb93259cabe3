"""From many token sequences of any length to the log-probabilities of their last ids, batch by batch."""

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import Naming, NumericsError
from minfer_jax.model import Model
from minfer_jax.runtime.buckets import pack_sequences
from minfer_jax.runtime.call import Call
from minfer_jax.runtime.runtime import as_runtime

_IN_FLIGHT = 2  # one batch computes while the next waits, so that the device never does

Scored = tuple[int, np.ndarray, np.ndarray]
Running = tuple[Call, list[tuple[int, slice]]]  # and which rows of its results are whose


def score_suffixes(
    model: Model,
    sequences: Sequence[Sequence[int]],
    n_scored: Sequence[int],
    batch_tokens: int | None,
    where: Naming,
) -> Iterator[Scored]:
    """Log-probability of each sequence's last ``n_scored`` ids, each after all ids before it.

    sequences: checked ids, at least two each and at most n_ctx + 1 (the last is never fed in); n_scored: at least 1
    and less than the length. batch_tokens: token slots of a batch; None: the default of the package.

    Yields (index, logprobs float32 [n_scored], likeliest ids int32 [n_scored]) as batches finish, in any order.
    Raises NumericsError, named by ``where`` for the index, when a value is not finite.
    """
    runtime = as_runtime(model)
    batch_tokens = runtime.batch_tokens if batch_tokens is None else check_integer("batch_tokens", batch_tokens, 1)
    running: deque[Running] = deque()
    for batch in pack_sequences(sequences, n_scored, batch_tokens, runtime.can_share):
        running.append(runtime.score(batch))
        if len(running) >= _IN_FLIGHT:
            yield from _read(model, running.popleft(), where)
    while running:
        yield from _read(model, running.popleft(), where)


def _read(model: Model, batch: Running, where: Naming) -> Iterator[Scored]:
    call, items = batch
    logprobs, greedy = call.read()
    for index, rows in items:
        values = logprobs[rows]
        finite = np.isfinite(values)
        if not finite.all():
            with where(index):
                raise NumericsError(
                    f"the log-probability of scored token {int(finite.argmin())} is not finite; the weights of "
                    f"{model.file.name} hold NaN or infinity"
                )
        yield index, values, greedy[rows]
