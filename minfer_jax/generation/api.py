"""The calls of generation, and the iterator that ``stream`` gives."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from minfer_jax.arguments import check_iterable
from minfer_jax.errors import naming
from minfer_jax.generation.arguments import LogitsProcessor
from minfer_jax.generation.output import Generation
from minfer_jax.generation.run import Request, Run
from minfer_jax.model import Model
from minfer_jax.runtime.buckets import MAX_STEPS
from minfer_jax.sampling import Sampler


class TextStream(Iterator[str]):
    """Pieces of a text as they are generated; joined they are ``Generation.text``.

    No piece is empty, ends inside a character, or holds the beginning of a stop string. ``result`` is the Generation
    once the pieces have run out, None before. ``close()`` (or leaving a ``with`` block) ends generation early and
    frees its cache.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces = (piece for pieces in run for piece in pieces if piece)
        self.result: Generation | None = None

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration:
            if self._run.finished:
                self.result = self._run.results()[0]
            raise

    def close(self) -> None:
        """End generation here and free its cache; nothing more comes, and ``result`` stays None."""
        self._pieces.close()
        self._run.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def generate(
    model: Model,
    prompt: str | Sequence[int],
    *,
    max_tokens: int | None = None,
    sampler: Sampler | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Iterable[int] | None = None,
    parse_special: bool = False,
    logits_processors: Iterable[LogitsProcessor] = (),
) -> Generation:
    """Continue a prompt.

    prompt: text, encoded with the model's BOS policy (an empty one starts from ``tokenizer.start_id()``); or token ids,
        taken exactly as they are, as ``tokenizer.encode_chat`` gives them.
    max_tokens: most tokens to draw; None or -1: until the context is full. Prompt and output together never exceed
        ``model.config.n_ctx`` tokens; 0 gives an empty text.
    sampler: how tokens are drawn; None is ``Sampler()``.
    stop: strings that end the text and are not part of it. The one that starts first in the text counts, across
        token boundaries; empty strings are ignored.
    stop_ids: token ids that end the text; None: ``model.tokenizer.eog_ids``, an empty list: none.
    parse_special: match control tokens (``<|im_end|>``) in a prompt that is text; without it they are plain text.
    logits_processors: functions ``(ids, logits) -> logits`` that change the model's logits before the sampler sees
        them; ids are those of prompt and output so far, logits a float32 [vocab] array of the function's own. They are
        called for each token of each prompt in turn; what they need to know they read from the ids. Logits then come to
        the host and tokens are drawn one at a time. To ban tokens, ``Sampler(logit_bias=...)`` is simpler.

    Raises ArgumentError naming the argument; TokenizerError; ContextLengthError when the prompt leaves no room;
    NumericsError when the model's logits are not finite.
    """
    request = Request(max_tokens, sampler, stop, stop_ids, parse_special, logits_processors)
    run = Run(model, [prompt], _prompt, request, first_portion=MAX_STEPS)
    return run.finish()[0]


def stream(
    model: Model,
    prompt: str | Sequence[int],
    *,
    max_tokens: int | None = None,
    sampler: Sampler | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Iterable[int] | None = None,
    parse_special: bool = False,
    logits_processors: Iterable[LogitsProcessor] = (),
) -> TextStream:
    """As :func:`generate`, but an iterator over pieces of the text. Arguments are checked at once."""
    request = Request(max_tokens, sampler, stop, stop_ids, parse_special, logits_processors)
    run = Run(model, [prompt], _prompt, request, first_portion=1)
    return TextStream(run)


def generate_batch(
    model: Model,
    prompts: Iterable[str | Sequence[int]],
    *,
    max_tokens: int | None = None,
    sampler: Sampler | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Iterable[int] | None = None,
    parse_special: bool = False,
    logits_processors: Iterable[LogitsProcessor] = (),
) -> list[Generation]:
    """As :func:`generate` for many prompts, which run side by side as rows of one batch, however long each is.

    All rows share the sampler; with temperature each draws its own numbers, row 0 those of a single ``generate``.
    The cache holds all rows at the length of the longest. Errors name the prompt by its index from 0, which is
    ``error.index`` too.
    """
    where = partial(naming, "prompt")
    prompts = list(check_iterable("prompts", prompts))
    request = Request(max_tokens, sampler, stop, stop_ids, parse_special, logits_processors)
    run = Run(model, prompts, where, request, first_portion=MAX_STEPS)
    return run.finish()


def _prompt(_: int) -> AbstractContextManager[None]:
    return naming("prompt")
