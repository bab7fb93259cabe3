"""Scoring of text: a continuation after a context, by the rule of the evaluation harness."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice

from minfer_jax.arguments import check_iterable
from minfer_jax.errors import ArgumentError, Naming, naming
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.results import Score
from minfer_jax.scoring.tokens import check_fits, score_id_pairs
from minfer_jax.tokenizer import Tokenizer

log = logging.getLogger("minfer_jax")

_WINDOW = 2048  # pairs that are sorted by length together


@dataclass(frozen=True)
class EncodedPair:
    """Ids of a context and of the continuation after it; merged: a token spans the boundary."""

    context: list[int]
    continuation: list[int]
    merged: bool


def split_pair(context: str, continuation: str) -> tuple[str, str]:
    """The boundary that tokenizers can keep: white space at the end of the context belongs to the continuation."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str, parse_special: bool = False) -> EncodedPair:
    """Ids of a pair by the rule of lm-evaluation-harness: the whole text is encoded at once, and the continuation is
    what stands behind as many ids as the context has on its own. Where a token spans the boundary, the context's
    ids are those of the whole too, so that what is scored is always the whole text as the model would read it.

    An empty context is one id, ``tokenizer.start_id()``. ``parse_special`` as in ``Tokenizer.encode``.
    """
    context, continuation = split_pair(context, continuation)
    before = tokenizer.encode(context, parse_special=parse_special)
    whole = tokenizer.encode(context + continuation, parse_special=parse_special)
    after = whole[len(before) :]
    merged = bool(continuation) and (whole[: len(before)] != before or not after)
    if after and not before:
        start = tokenizer.start_id()
        before, after = [start], after[1:] if after[:1] == [start] else after
    else:
        before = whole[: len(before)]
    return EncodedPair(before, after, merged)


def score(
    model: Model,
    pairs: Iterable[tuple[str, str]],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> list[Score]:
    """Log-probability of each continuation after its context: one Score per (context, continuation), in order.

    pairs: any iterable of two texts. White space at the end of a context counts as the beginning of its continuation;
    both are encoded as one text (:func:`encode_pair`), with BOS by the model's policy. Look at the flags of a Score
    before you trust its number: ``truncated``, ``empty``, ``merged``.
    parse_special: match control tokens (``<|im_end|>``) in the texts; without it they are plain text.
    batch_tokens: token slots per batch, to trade memory for speed. progress: show a bar; None: on a terminal.

    Raises ArgumentError, TokenizerError, ContextLengthError (a continuation longer than the window) or NumericsError
    (a log-probability is not finite), naming the pair by its index from 0, which is ``error.index`` too.
    """
    return list(score_stream(model, pairs, parse_special=parse_special, batch_tokens=batch_tokens, progress=progress))


def score_stream(
    model: Model,
    pairs: Iterable[tuple[str, str]],
    *,
    parse_special: bool = False,
    batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Iterator[Score]:
    """As :func:`score`, one by one: a few thousand pairs are read ahead, and nothing else is kept.

    What has been yielded before an error stays with the caller. That ``pairs`` can be iterated is checked at once.
    """
    rest = check_iterable("pairs", pairs)
    total = len(pairs) if isinstance(pairs, Sized) else None
    return _stream(model, rest, total, parse_special, batch_tokens, progress)


def _stream(
    model: Model,
    rest: Iterator[tuple[str, str]],
    total: int | None,
    parse_special: bool,
    batch_tokens: int | None,
    progress: bool | None,
) -> Iterator[Score]:
    first = 0
    merged = 0
    with progress_bar("scoring", total, "pair", progress) as bar:
        while window := list(islice(rest, _WINDOW)):
            encoded = []
            for i, pair in enumerate(window, first):
                with naming("pair", i):
                    encoded.append(_encode(model, pair, parse_special))
            yield from score_encoded(model, encoded, batch_tokens, _numbered(first), bar.update)
            merged += sum(pair.merged for pair in encoded)
            first += len(window)
    warn_of_merged(merged, first)


def score_encoded(
    model: Model,
    pairs: Sequence[EncodedPair],
    batch_tokens: int | None,
    where: Naming,
    done: Callable[[int], object],
) -> list[Score]:
    """One Score per pair, which knows whether it is merged; arguments as in ``score_id_pairs``."""
    ids = [(pair.context, pair.continuation) for pair in pairs]
    scores = score_id_pairs(model, ids, batch_tokens, where, done)
    return [
        replace(score, merged=pair.merged).read_by(model.tokenizer) for score, pair in zip(scores, pairs, strict=True)
    ]


def warn_of_merged(merged: int, total: int) -> None:
    """Say how many of all continuations begin inside a token, if any."""
    if merged:
        log.warning(
            "%d of %d continuations begin inside a token and were not scored in full: see Score.merged", merged, total
        )


def _numbered(first: int) -> Naming:
    return lambda i: naming("pair", first + i)


def _encode(model: Model, pair: tuple[str, str], parse_special: bool) -> EncodedPair:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise ArgumentError(f"got {pair!r:.80}; give two texts, (context, continuation)")
    return encode_that_fits(model, *pair, parse_special)


def encode_that_fits(model: Model, context: str, continuation: str, parse_special: bool) -> EncodedPair:
    """As :func:`encode_pair`; raises ContextLengthError for a continuation longer than the window."""
    encoded = encode_pair(model.tokenizer, context, continuation, parse_special)
    check_fits(model, encoded.continuation)
    return encoded


def encode_scorable(model: Model, context: str, continuation: str, parse_special: bool) -> EncodedPair:
    """As :func:`encode_that_fits`; raises ArgumentError for a continuation without a token of its own, too."""
    pair = encode_that_fits(model, context, continuation, parse_special)
    if not pair.continuation:
        why = "its first token swallows the end of the context" if pair.merged else "it is empty"
        raise ArgumentError(f"{continuation!r:.80} has no token to score: {why}")
    return pair
