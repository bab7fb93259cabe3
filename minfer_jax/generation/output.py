"""From tokens to a finished text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minfer_jax.display.text import counted, quoted
from minfer_jax.generation.stopping import StopMatcher
from minfer_jax.records import TokenRecord
from minfer_jax.tokenizer import StreamDecoder


@dataclass(frozen=True)
class Generation(TokenRecord):
    """A generated text.

    text: up to the stop string, if one was found; bytes of a character that was never completed are one U+FFFD.
    tokens: the ids drawn, without the end id; with a stop string, those up to the one that settled the match, so
        that they may reach beyond the text.
    token_logprobs: one for each of ``tokens``, by the model's own distribution (before logits processors, bias,
        penalties, filters and temperature).
    finish_reason: "stop" (an end id or a stop string) or "length" (max_tokens, or the context is full).
    stopped_by: the end id or the stop string, None for "length".
    end_logprob: log-probability of the end id, None where no end id was drawn.
    n_prompt: tokens of the prompt. seed: the one that was used; the same call with it gives the same text.
    """

    text: str
    tokens: list[int]
    token_logprobs: list[float]
    finish_reason: str
    stopped_by: int | str | None
    end_logprob: float | None
    n_prompt: int
    seed: int

    @property
    def usage(self) -> dict[str, int]:
        """Token counts under the names of the OpenAI API."""
        n = len(self.tokens)
        return {"prompt_tokens": self.n_prompt, "completion_tokens": n, "total_tokens": self.n_prompt + n}

    def to_dict(self) -> dict[str, Any]:
        """All fields and ``usage``, ready for JSON."""
        return super().to_dict() | {"usage": self.usage}

    def summary(self) -> str:
        reason = self.finish_reason
        if isinstance(self.stopped_by, str):
            reason += f" at {quoted(self.stopped_by)}"
        elif self.stopped_by is not None:
            reason += f" at id {self.stopped_by}"
        return f"{counted(len(self.tokens), 'token')} after {self.n_prompt:,}, {reason}"

    def __str__(self) -> str:
        return f"Generation: {self.summary()}: {quoted(self.text)}"


class Row:
    """The output of one prompt: tokens to text, and the reasons to end."""

    def __init__(self, n_prompt: int, stops: Sequence[str], ends: np.ndarray, decoder: StreamDecoder) -> None:
        self.n_prompt = n_prompt
        self.tokens: list[int] = []
        self.token_logprobs: list[float] = []
        self.pieces: list[str] = []
        self.finish_reason: str | None = None
        self.stopped_by: int | str | None = None
        self.end_logprob: float | None = None
        self._ends = ends
        self._matcher = StopMatcher(stops)
        self._decoder = decoder

    def push(self, token: int, logprob: float, limit: int) -> str:
        """Take a token; give the text that it makes certain, all that is left if the row ends with it."""
        if self._ends[token]:
            self.end_logprob = logprob
            return self.finish("stop", token)
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        piece = self._matcher.push(self._decoder.push(token))
        self.pieces.append(piece)
        if self._matcher.matched is not None:
            self.finish_reason, self.stopped_by = "stop", self._matcher.matched
        elif len(self.tokens) == limit:
            piece += self.finish("length", None)
        return piece

    def finish(self, reason: str, stopped_by: int | None) -> str:
        """End the row and release the text held back; it may complete a stop string."""
        piece = self._matcher.push(self._decoder.finish()) + self._matcher.finish()
        self.pieces.append(piece)
        self.finish_reason, self.stopped_by = reason, stopped_by
        if self._matcher.matched is not None:
            self.finish_reason, self.stopped_by = "stop", self._matcher.matched
        return piece

    def result(self, seed: int) -> Generation:
        assert self.finish_reason is not None
        return Generation(
            text="".join(self.pieces),
            tokens=self.tokens,
            token_logprobs=self.token_logprobs,
            finish_reason=self.finish_reason,
            stopped_by=self.stopped_by,
            end_logprob=self.end_logprob,
            n_prompt=self.n_prompt,
            seed=seed,
        )
