"""Pieces of work on random tokens, as generation and scoring ask for them: what is traced, measured and drawn."""

from itertools import pairwise

import jax
import numpy as np

from minfer_jax.errors import ContextLengthError
from minfer_jax.models.cache import init_cache
from minfer_jax.models.config import Config
from minfer_jax.runtime.buckets import (
    MAX_STEPS,
    cache_bucket,
    last_column,
    pack_sequences,
    prompt_columns,
    round_up,
    trip_count,
)
from minfer_jax.runtime.decode import DecodeState, start_state
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.sampling import Sampler

GREEDY = Sampler(temperature=0)


def check_room(config: Config, n: int) -> None:
    """Raises ContextLengthError, with both numbers, when n tokens are more than the context window has."""
    if n > config.n_ctx:
        raise ContextLengthError(f"{n} tokens do not fit the context window of {config.n_ctx}; give fewer")


def random_ids(config: Config, batch: int, n: int) -> np.ndarray:
    """int32 [batch, n], the same at every call."""
    return np.random.default_rng(0).integers(0, config.vocab_size, (batch, n), np.int32)


def score(runtime: Runtime, batch: int, n: int) -> None:
    """Log-probabilities of all n tokens behind the first one, in ``batch`` sequences."""
    sequences = random_ids(runtime.config, batch, n + 1).tolist()
    for packed in pack_sequences(sequences, [n] * batch, runtime.batch_tokens):
        call, _ = runtime.score(packed)
        call.read()


class Session:
    """``batch`` sequences side by side whose first ``depth`` tokens are in a KV cache with room for ``more``.

    Each piece of work starts behind those ``depth`` tokens again: it writes its slots of the cache anew, and what an
    earlier one left behind them is not looked at. length: of the cache; None takes that of generation.
    Raises ContextLengthError when depth + more tokens do not fit the context window.
    """

    def __init__(self, runtime: Runtime, batch: int, depth: int, more: int, length: int | None = None) -> None:
        config = runtime.config
        check_room(config, depth + more)
        self._runtime = runtime
        self._batch, self._rows = batch, round_up(batch)
        self._depth, self._more = depth, more
        self._ids = random_ids(config, self._rows, depth + more)
        self._settings = jax.device_put(GREEDY.settings(config.vocab_size, 0))
        self._ends = jax.device_put(np.zeros(config.vocab_size, bool))
        self.cache = init_cache(config, self._rows, length or cache_bucket(depth + more, config.n_ctx))
        if depth:
            self._fill(0, depth)

    def prefill(self) -> jax.Array:
        """``more`` tokens as a prompt: the logits [rows, vocab] after the last ones, still on the device."""
        return self._fill(self._depth, self._depth + self._more)

    def start(self) -> DecodeState:
        """What ``generate`` goes on from: the first token behind those in the cache."""
        prompts = self._ids[: self._batch, : self._depth + 1].tolist()
        rows = self.cache.k.shape[1]  # fewer than before where the exact batch has a program of its own
        return start_state(prompts, [self._more] * self._batch, rows, self._runtime.config.vocab_size)

    def generate(self, state: DecodeState) -> list[int]:
        """``more`` tokens, greedily and with none that ends a text; ``state`` is consumed. How many steps each program
        call took."""
        runtime, going, taken = self._runtime, np.zeros(self._batch, bool), []
        while (done := sum(taken)) < self._more:
            budget = min(self._more - done, MAX_STEPS)
            steps, n = trip_count(budget, runtime.early_exit)
            sizes = self._batch, steps, budget, GREEDY.greedy
            call = runtime.decode(*sizes, self.cache, state, self._settings, self._ends, going)
            self.cache, state, out = call.out
            call.read(out)
            taken.append(n)
        return taken

    def step(self) -> np.ndarray:
        """One token in every row, and the logits [rows, 1, vocab] after it on the host."""
        positions = np.full((self._rows, 1), self._depth, np.int32)
        tokens = self._ids[:, self._depth : self._depth + 1]
        logits, cache = self._runtime.forward(tokens, positions, self.cache)
        assert cache is not None  # one went in
        self.cache = cache
        return logits

    def _fill(self, begin: int, end: int) -> jax.Array:
        logits = None
        columns = prompt_columns(end - begin, self._rows, jax.default_backend())
        for first, last in pairwise((begin, *(begin + column for column in columns))):
            positions = np.tile(np.arange(first, last, dtype=np.int32), (self._rows, 1))
            tokens, tail_ids = self._ids[:, first:last], last_column(self._rows, last - first)
            logits, self.cache = self._runtime.prefill(tokens, positions, self.cache, tail_ids)
        assert logits is not None  # no run is empty
        return logits
