"""The host's side of generation: prompts into a cache, then portions of tokens from it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import numpy as np

from minfer_jax.models.cache import init_cache
from minfer_jax.models.head import head_weight
from minfer_jax.runtime.buckets import (
    MAX_STEPS,
    cache_bucket,
    last_column,
    pad_ended,
    prompt_columns,
    round_up,
    trip_count,
)
from minfer_jax.runtime.decode import draw_tokens, grow_cache, start_state
from minfer_jax.runtime.program import no_collection
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.sampling import Settings

Process = Callable[[int, np.ndarray], np.ndarray]
"""(row, its logits float32 [V]) -> logits float32 [V] to draw from; those given are left as they are."""


class Decoder:
    """One run of generation: owns its cache and state, gives tokens in portions.

    prompts: token ids, at least one each; limits: how many tokens each row may produce, at least one, such that
    prompt and output fit config.n_ctx. process: changes the logits of a row on the host before a token is drawn; the
    logits then come back at every step.
    """

    def __init__(
        self,
        runtime: Runtime,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        settings: Settings,
        ends: np.ndarray,
        process: Process | None = None,
    ) -> None:
        self._runtime = runtime
        self._greedy = bool(settings.greedy)
        self._settings, self._ends = jax.device_put((settings, ends))
        self._prompts, self._limits, self._process = prompts, limits, process
        self._rows = round_up(len(prompts))
        self._state = start_state(prompts, limits, self._rows, ends.shape[0])
        length = cache_bucket(self._needed(1 + MAX_STEPS), runtime.config.n_ctx)
        self._cache = init_cache(runtime.config, self._rows, length)
        self._tokens = np.zeros(len(prompts), np.int32)  # the last ones
        self._produced = 0  # steps taken; a row that has not ended has as many tokens

    def next(self, count: int, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 and log-probabilities float32, both [n, prompts]: first one, then about ``count`` at a time.

        ended: bool [prompts], rows whose text has ended by a decision of the host.
        """
        if self._produced == 0:
            out = self._first(ended)
        elif self._process is not None:
            out = self._step(ended)
        else:
            out = self._portion(count, ended)
        tokens, logprobs = (values[:, : len(self._prompts)] for values in out)
        self._tokens = tokens[-1]
        return tokens, logprobs

    def _first(self, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prompts into the empty cache, and the token after each.

        Rows are aligned to the right: padding (position -1) may stand anywhere, and so every row's last token is in
        the last column of the last chunk.
        """
        # At least two columns, as there are if a longer prompt stands beside.
        columns = prompt_columns(max(2, *map(len, self._prompts)), self._rows, jax.default_backend())
        width = columns[-1]
        tokens = np.zeros((self._rows, width), np.int32)
        positions = np.full((self._rows, width), -1, np.int32)
        for row, prompt in enumerate(self._prompts):
            tokens[row, width - len(prompt) :] = prompt
            positions[row, width - len(prompt) :] = np.arange(len(prompt))
        chunks = [
            (tokens[:, begin:end], positions[:, begin:end], last_column(self._rows, end - begin))
            for begin, end in pairwise((0, *columns))
        ]
        for chunk_tokens, chunk_positions, last in chunks[:-1]:
            _, self._cache = self._runtime.prefill(chunk_tokens, chunk_positions, self._cache, last)
        return self._draw(*chunks[-1], ended)

    def _step(self, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One token with the host in the loop."""
        self._make_room(1)
        tokens = np.zeros((self._rows, 1), np.int32)
        positions = np.full((self._rows, 1), -1, np.int32)
        for row, prompt in enumerate(self._prompts):
            if not ended[row]:
                tokens[row] = self._tokens[row]
                positions[row] = len(prompt) + self._produced - 1
        return self._draw(tokens, positions, None, ended)

    def _draw(
        self, tokens: np.ndarray, positions: np.ndarray, tail_ids: np.ndarray | None, ended: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tokens through the model, and one drawn from each row's logits."""
        processed = None
        if self._process is None:
            logits, self._cache = self._runtime.prefill(tokens, positions, self._cache, tail_ids)
        else:
            # A copy: a processor may itself call this runtime.
            logits, cache = self._runtime.forward(tokens, positions, self._cache, tail_ids, copy=True)
            assert cache is not None  # one went in
            self._cache = cache
            logits = logits.reshape(self._rows, -1)
            processed = logits.copy()
            for row in np.flatnonzero(~ended):
                processed[row] = self._process(int(row), logits[row])
        cancelled = pad_ended(ended, self._rows)
        with no_collection():  # the first call compiles
            static = {"native": head_weight(self._runtime.params).is_tiled, "greedy": self._greedy}
            args = logits, processed, self._state, self._settings, self._ends, cancelled
            self._state, out = draw_tokens(*args, **static)
        self._produced += 1
        return jax.device_get(out)

    def _portion(self, count: int, ended: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """About ``count`` tokens by one program call, or as many as its trip count says."""
        count = min(count, MAX_STEPS, max(self._limits) - self._produced)
        steps, taken = trip_count(count, self._runtime.early_exit)
        self._make_room(taken)
        sizes = len(self._prompts), steps, count, self._greedy
        call = self._runtime.decode(*sizes, self._cache, self._state, self._settings, self._ends, ended)
        self._cache, self._state, out = call.out
        self._produced += taken
        tokens, logprobs = call.read(out)
        return tokens[:taken], logprobs[:taken]

    def _make_room(self, taken: int) -> None:
        needed = self._needed(self._produced + taken)
        if needed > self._cache.length:
            self._cache = grow_cache(self._cache, cache_bucket(needed, self._runtime.config.n_ctx, self._cache.length))

    def _needed(self, produced: int) -> int:
        """Cache slots for the prompts and the first ``produced`` tokens of each row."""
        return max(len(p) + min(produced, n) for p, n in zip(self._prompts, self._limits, strict=True))
