"""Runtime: a model with the machinery that runs it. Every forward of the package goes through here."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from minfer_jax.env import promote_prefill
from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.models.cache import KVCache
from minfer_jax.runtime import decode, jitted
from minfer_jax.runtime.buckets import (
    BATCH_TOKENS,
    Batch,
    by_backend,
    decode_shapes,
    forward_shapes,
    pad_ended,
    pad_run,
    unpad_run,
)
from minfer_jax.runtime.cache_info import CacheInfo, describe
from minfer_jax.runtime.call import Call, traced_call
from minfer_jax.runtime.inputs import check_run
from minfer_jax.runtime.keys import Shape, graph_uid, key_name, traced_settings
from minfer_jax.runtime.program import compile_program, specs
from minfer_jax.runtime.program_cache import MAX_BYTES, MAX_PROGRAMS, ProgramCache, Promotion
from minfer_jax.runtime.readback import Readback, Route
from minfer_jax.runtime.resident import resident
from minfer_jax.runtime.trace import Tracer, TraceRecord
from minfer_jax.sampling import Settings


class Runtime(Model):
    """A model with compiled programs of its own; it goes wherever a Model goes: ``score(runtime, ...)``.

    A plain Model is run by one set of programs that all models of the process share.

    promotion: "background" compiles a shape at its third run in a thread while its bucket serves it; "blocking" makes
        the third run wait; "off" leaves every shape to its bucket. A promoted program is another compilation of the
        same arithmetic: the last bits of a result may change with it. promote_prefill: whether runs of many tokens
        (prefill, scoring) are ever promoted; None asks MINFER_NO_PREFILL_CAPTURE at each call. Decoding always is.
    readback: how logits come to the host, "ffi", "pinned_host" or "plain"; None: the measured fastest of the backend.
    max_programs, max_program_bytes: most programs to keep, and most device memory for their code and constants; the
        least recently used ones go first.

    ``prefill``, ``score`` and ``decode`` are what generation and scoring are made of, and check nothing; call
    ``mj.score(runtime, ...)``, ``mj.generate(runtime, ...)`` or ``forward``.

    Safe to call from several threads, ``forward`` with ``copy=True``. Raises ArgumentError naming the argument,
    UnsupportedError for a readback that is not available here.
    """

    def __init__(
        self,
        model: Model,
        *,
        promotion: Promotion = "background",
        promote_prefill: bool | None = None,
        readback: Route | None = None,
        max_programs: int = MAX_PROGRAMS,
        max_program_bytes: int = MAX_BYTES,
        _shared: tuple[ProgramCache, Readback] | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise ArgumentError(f"model is {model!r:.40}; give a Model, as load() returns it")
        if promote_prefill is not None and not isinstance(promote_prefill, bool):
            raise ArgumentError(f"promote_prefill is {promote_prefill!r}; give True, False or None")
        super().__init__(model.config, model.params, model.tokenizer, model.provenance, model.file)
        self._settings = traced_settings()
        self.graph_uid: str = graph_uid(model.config, model.params, self._settings)
        self.early_exit: bool = jax.default_backend() == "cpu"
        self.batch_tokens: int = by_backend(BATCH_TOKENS, jax.default_backend())
        own = _shared or (ProgramCache(promotion, max_programs, max_program_bytes), Readback(readback))
        self._programs, self._readback = own
        self._promote_prefill = promote_prefill
        self._tracer = Tracer()

    def forward(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        cache: KVCache | None = None,
        tail_ids: np.ndarray | None = None,
        *,
        copy: bool = False,
    ) -> tuple[np.ndarray, KVCache | None]:
        """As :func:`minfer_jax.forward`, by a compiled program of a bucket or of this very shape, with the logits on
        the host.

        tokens, positions: integers [B, T]. cache: consumed; go on with the one returned. Each length of a cache is a
        program of its own: use few, such as 256 and 512. tail_ids: [n_out], of the B * T flattened rows.
        copy: False gives a read-only array that is valid until the next ``forward`` of this Runtime, whose logits may
        take its place; True one of your own, which threads need.

        Returns (logits float32 [B, T, vocab] or [n_out, vocab], cache). Raises ArgumentError naming the argument,
        ContextLengthError for positions beyond the cache.
        """
        tokens, positions, tail_ids = check_run(self.config, tokens, positions, cache, tail_ids)
        vocab = self.config.vocab_size
        tail = _fewer_than_all(tail_ids, tokens)
        exact, bucket = self._shapes(tokens, cache, tail, self._readback.route)
        with self._readback.claim(4 * vocab * max(exact.n_out, bucket.n_out)) as claim:
            if claim.route != exact.readback:  # no memory for the buffer, or the switch has just been set
                exact, bucket = self._shapes(tokens, cache, tail, claim.route)
            destination = None if claim.route == "plain" else (claim.route, self._readback.slot)
            call = self._forward(exact, bucket, tokens, positions, cache, tail, destination)
            out, cache = call.out
            began = time.perf_counter()
            logits = claim.fetch(out, (call.shape.n_out, vocab), copy)
            call.finish(time.perf_counter() - began, logits.nbytes)
            logits = unpad_run(logits, call.shape, exact)
            if tail is not tail_ids:
                logits = logits.reshape(-1, vocab)[tail_ids]
            logits.flags.writeable = copy
            return logits, cache

    def prefill(
        self, tokens: np.ndarray, positions: np.ndarray, cache: KVCache, tail_ids: np.ndarray | None
    ) -> tuple[jax.Array, KVCache]:
        """Tokens [B, T] into the cache (consumed), and the logits [n_out, vocab] of rows ``tail_ids``, which stay on
        the device. Arguments are not checked."""
        tail = _fewer_than_all(tail_ids, tokens)
        exact, bucket = self._shapes(tokens, cache, tail)
        call = self._forward(exact, bucket, tokens, positions, cache, tail, None)
        call.finish()
        logits, cache = call.out
        if call.shape.n_out != exact.n_out:
            logits = unpad_run(logits, call.shape, exact).reshape(exact.n_out, -1)
        return (logits if tail is tail_ids else logits[tail_ids]), cache

    @property
    def can_share(self) -> bool:
        """Whether sequences that begin alike may share what they have in common: where that changes no bit."""
        return self.params.embedding.is_tiled

    def score(self, batch: Batch) -> tuple[Call, list[tuple[int, slice]]]:
        """Start scoring a batch: a call that gives (logprob float32 [n_out], likeliest token int32 [n_out]), and for
        each sequence of the batch its index and its slice of them."""

        def arrange(shape: Shape, _: bool) -> tuple:
            filled = batch.fill(shape)
            until = filled.until if self.can_share else None
            return self.params, filled.tokens, filled.positions, filled.tail_ids, filled.targets, until

        call = self._call(jitted.score_rows, batch.exact, batch.bucket, arrange, {})
        return call, batch.results(call.shape)

    def decode(
        self,
        n: int,
        steps: int,
        budget: int,
        greedy: bool,
        cache: KVCache,
        state: decode.DecodeState,
        settings: Settings,
        ends: jax.Array,
        ended: np.ndarray,
    ) -> Call:
        """Generate in ``n`` sequences: a call that gives what :func:`.decode.decode` does. Cache and state are
        consumed; they may have rows of padding, which a promoted program drops."""
        sampling = "" if self.early_exit else "greedy" if greedy else "draw"
        route = self._readback.small
        rows = cache.k.shape[1]
        exact, bucket = decode_shapes(n, rows, cache.length, cache.k.dtype, steps, sampling, route)

        def arrange(shape: Shape, abstract: bool) -> tuple:
            kept = cache, state
            if shape.batch != rows:
                cut = partial(decode.first_rows, rows=shape.batch)
                kept = jax.eval_shape(cut, *kept) if abstract else cut(*kept)
            those = resident(np.int32(budget)), resident(pad_ended(ended, shape.batch))
            return self.params, those[0], *kept, settings, ends, those[1]

        known = None if self.early_exit else greedy
        static = {"steps": steps, "early_exit": self.early_exit, "greedy": known, "readback": route}
        return self._call(decode.decode, exact, bucket, arrange, static)

    def trace(self, block: bool = False) -> AbstractContextManager[list[TraceRecord]]:
        """Collect a record of every program call inside a ``with`` block. block: wait for each program, which tells
        its device time and slows the whole down."""
        return self._tracer.listen(block)

    def cache_info(self) -> CacheInfo:
        """What has run, what was compiled for it, and what it cost."""
        return describe(self._programs)

    def hlo(self, program: str) -> str:
        """Text of the optimised HLO module of a compiled program, named as in ``cache_info().programs`` or, of this
        model's graph, by the shape alone."""
        for key, compiled in self._programs.snapshot()[1].items():
            if program == key_name(key) or (program == str(key[1]) and key[0] == self.graph_uid):
                return compiled.text
        raise ArgumentError(f"no program {program!r} is compiled; cache_info().programs has the names")

    def settle(self) -> None:
        """Wait until no promotion is under way in the background."""
        self._programs.settle()

    def _shapes(
        self, tokens: np.ndarray, cache: KVCache | None, tail_ids: np.ndarray | None, readback: Route = "plain"
    ) -> tuple[Shape, Shape]:
        n_out = tokens.size if tail_ids is None else len(tail_ids)
        length, dtype = (0, None) if cache is None else (cache.length, cache.k.dtype)
        return forward_shapes(*tokens.shape, n_out, length, dtype, readback)

    def _forward(
        self,
        exact: Shape,
        bucket: Shape,
        tokens: np.ndarray,
        positions: np.ndarray,
        cache: KVCache | None,
        tail_ids: np.ndarray | None,
        destination: tuple[Route, int] | None,
    ) -> Call:
        def arrange(shape: Shape, _: bool) -> tuple:
            padded_tokens, padded_positions, padded_tail = pad_run(tokens, positions, tail_ids, shape)
            tail = None if padded_tail is None else resident(padded_tail)
            return self.params, padded_tokens, resident(padded_positions), cache, tail

        return self._call(jitted.forward_rows, exact, bucket, arrange, {"destination": destination})

    def _call(
        self,
        function: Any,
        exact: Shape,
        bucket: Shape,
        arrange: Callable[[Shape, bool], tuple],
        static: dict[str, Any],
    ) -> Call:
        """Run ``function`` on the arguments that ``arrange`` gives for whichever of the two shapes has a program. Asked
        for abstract ones, to compile with, it may give shapes and dtypes instead of arrays."""

        def prepare(shape: Shape):
            args = specs(arrange(shape, True))
            return lambda: compile_program(shape, function, args, {"config": self.config, **static}, self._settings)

        promote = exact.kind == "decode" or self._prefill_may_promote()
        program, run, promoted = self._programs.serve(self.graph_uid, exact, bucket, promote, prepare)
        key = (self.graph_uid, exact)
        args = ()
        try:
            args = arrange(program.shape, False)
            return traced_call(program, args, self._tracer, key, run, promoted)
        except jax.errors.JaxRuntimeError as error:
            if program.shape == bucket or "RESOURCE_EXHAUSTED" not in str(error) or _is_consumed(args):
                raise
            program = self._programs.fall_back(self.graph_uid, exact, bucket, error, prepare)
            return traced_call(program, arrange(bucket, False), self._tracer, key, run, False)

    def _prefill_may_promote(self) -> bool:
        return promote_prefill() if self._promote_prefill is None else self._promote_prefill


_shared_lock = threading.Lock()


@cache
def _shared() -> tuple[ProgramCache, Readback]:
    return ProgramCache(), Readback()


def as_runtime(model: Model) -> Runtime:
    """The model itself if it is a Runtime, else one over the programs that plain models share."""
    if isinstance(model, Runtime):
        return model
    with _shared_lock:
        shared = _shared()
    return Runtime(model, _shared=shared)


def _fewer_than_all(tail_ids: np.ndarray | None, tokens: np.ndarray) -> np.ndarray | None:
    """tail_ids where a program is to have them: when all rows are wanted they are no argument."""
    return None if tail_ids is None or len(tail_ids) >= tokens.size else tail_ids


def _is_consumed(args: tuple) -> bool:
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in jax.tree.leaves(args))
