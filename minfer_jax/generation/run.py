"""One call of generation, from checked arguments to finished rows."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from minfer_jax.errors import ArgumentError, NumericsError
from minfer_jax.generation.arguments import check_ids, check_max_tokens, check_stops, prompt_ids, room
from minfer_jax.generation.output import Generation, Row
from minfer_jax.model import Model
from minfer_jax.runtime.buckets import round_up
from minfer_jax.runtime.decode import MAX_STEPS, NOT_FINITE, Decoder
from minfer_jax.sampling import Sampler, fresh_seed


class Run(Iterator[list[str]]):
    """Generation of a batch: each step gives the pieces of text of row 0 in one portion of tokens."""

    def __init__(
        self,
        model: Model,
        prompts: list[str | Sequence[int]],
        max_tokens: int | None,
        sampler: Sampler | None,
        stop: str | Sequence[str],
        stop_ids: Iterable[int] | None,
        first_portion: int,
    ) -> None:
        sampler = Sampler() if sampler is None else sampler
        if not isinstance(sampler, Sampler):
            raise ArgumentError(f"sampler is {sampler!r}; give a minfer_jax.Sampler")
        self._seed = fresh_seed() if sampler.seed is None else sampler.seed
        self._name = model.file.name
        vocab = model.config.vocab_size
        settings = sampler.settings(vocab, self._seed)
        stops = check_stops(stop)
        ends = np.zeros(vocab, bool)
        ends[check_ids(model, "stop_ids", model.tokenizer.eog_ids if stop_ids is None else stop_ids)] = True

        ids = [prompt_ids(model, prompt) for prompt in prompts]
        limit = check_max_tokens(max_tokens)
        limits = [room(len(prompt), limit, model.config.n_ctx) for prompt in ids]
        self._rows = [Row(len(prompt), stops, ends, model.tokenizer.stream_decoder()) for prompt in ids]
        self._decoder: Decoder | None = None
        if limit == 0 or not ids:
            for row in self._rows:
                row.finish("length", None)
            return
        self._padded = round_up(len(ids))
        self._portion = first_portion
        self._decoder = Decoder(model.params, model.config, ids, limits, settings, ends, self._padded)
        self._limits = limits

    @property
    def finished(self) -> bool:
        return all(row.finish_reason for row in self._rows)

    def close(self) -> None:
        """Free the cache."""
        self._decoder = None

    def __next__(self) -> list[str]:
        if self._decoder is None:
            raise StopIteration
        cancelled = np.ones(self._padded, bool)
        cancelled[: len(self._rows)] = [row.finish_reason is not None for row in self._rows]
        tokens, logprobs = self._decoder.next(self._portion, cancelled)
        self._portion = min(2 * self._portion, MAX_STEPS)
        pieces = []
        for step_tokens, step_logprobs in zip(tokens.tolist(), logprobs.tolist(), strict=True):
            for i, row in enumerate(self._rows):
                if row.finish_reason is None:
                    self._check_finite(i, step_tokens[i])
                    piece = row.push(step_tokens[i], step_logprobs[i], self._limits[i])
                    if i == 0:
                        pieces.append(piece)
        if self.finished:
            self.close()
        return pieces

    def _check_finite(self, index: int, token: int) -> None:
        if token == NOT_FINITE:
            place = f"token {len(self._rows[index].tokens) + 1} of the output"
            self.close()
            raise NumericsError(
                f"{self._name}: logits for {place} are not finite; the weights hold NaN or infinity, or a penalty or "
                "bias is out of range"
            )

    def results(self) -> list[Generation]:
        return [row.result(self._seed) for row in self._rows]
