"""One call of generation, from checked arguments to finished rows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minfer_jax.errors import ArgumentError, Naming, NumericsError
from minfer_jax.generation.arguments import (
    LogitsProcessor,
    check_max_tokens,
    check_processors,
    check_stop_ids,
    check_stops,
    process_logits,
    prompt_ids,
    room,
)
from minfer_jax.generation.output import Generation, Row
from minfer_jax.model import Model
from minfer_jax.runtime.buckets import MAX_STEPS
from minfer_jax.runtime.decode import NOT_FINITE
from minfer_jax.runtime.decoder import Decoder
from minfer_jax.runtime.runtime import as_runtime
from minfer_jax.sampling import Sampler, fresh_seed


@dataclass(frozen=True)
class Request:
    """What a caller asks of every prompt, as ``generate`` documents it; unchecked."""

    max_tokens: int | None
    sampler: Sampler | None
    stop: str | Sequence[str]
    stop_ids: Iterable[int] | None
    parse_special: bool
    logits_processors: Iterable[LogitsProcessor]


class Run(Iterator[list[str]]):
    """Generation of a batch: each step gives the pieces of text of row 0 in one portion of tokens."""

    def __init__(
        self, model: Model, prompts: list[str | Sequence[int]], where: Naming, request: Request, first_portion: int
    ) -> None:
        sampler = Sampler() if request.sampler is None else request.sampler
        if not isinstance(sampler, Sampler):
            raise ArgumentError(f"sampler is {sampler!r}; give a minfer_jax.Sampler")
        self._seed = fresh_seed() if sampler.seed is None else sampler.seed
        self._name = model.file.name
        self._tokenizer = model.tokenizer
        self._where = where
        vocab = model.config.vocab_size
        settings = sampler.settings(vocab, self._seed)
        stops = check_stops(request.stop)
        ends = np.zeros(vocab, bool)
        ends[check_stop_ids(model, request.stop_ids)] = True
        self._processors = check_processors(request.logits_processors)

        limit = check_max_tokens(request.max_tokens)
        self._prompts, self._limits = [], []
        for i, prompt in enumerate(prompts):
            with where(i):
                self._prompts.append(prompt_ids(model, prompt, request.parse_special))
                self._limits.append(room(len(self._prompts[i]), limit, model.config.n_ctx))
        self._rows = [Row(len(prompt), stops, ends, model.tokenizer.stream_decoder()) for prompt in self._prompts]
        self._decoder: Decoder | None = None
        if limit == 0 or not prompts:
            for row in self._rows:
                row.finish("length", None)
            return
        self._portion = first_portion
        process = self._process if self._processors else None
        self._decoder = Decoder(as_runtime(model), self._prompts, self._limits, settings, ends, process)

    @property
    def finished(self) -> bool:
        return all(row.finish_reason for row in self._rows)

    def close(self) -> None:
        """Free the cache."""
        self._decoder = None

    def __next__(self) -> list[str]:
        if self._decoder is None:
            raise StopIteration
        ended = np.array([row.finish_reason is not None for row in self._rows])
        tokens, logprobs = self._decoder.next(self._portion, ended)
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

    def _process(self, index: int, logits: np.ndarray) -> np.ndarray:
        return process_logits(self._processors, [*self._prompts[index], *self._rows[index].tokens], logits)

    def _check_finite(self, index: int, token: int) -> None:
        if token == NOT_FINITE:
            place = f"token {len(self._rows[index].tokens) + 1} of the output"
            self.close()
            with self._where(index):
                raise NumericsError(
                    f"logits for {place} are not finite; the weights of {self._name} hold NaN or infinity, or a "
                    "penalty, bias or logits processor is out of range"
                )

    def finish(self) -> list[Generation]:
        """Run to the end."""
        for _ in self:
            pass
        return self.results()

    def results(self) -> list[Generation]:
        return [row.result(self._seed).read_by(self._tokenizer) for row in self._rows]
