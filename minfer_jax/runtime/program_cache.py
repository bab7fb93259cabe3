"""Compiled programs by graph and shape, and the three-run protocol that decides which shapes get one of their own.

A shape that a caller asks for is *exact*; padded up by ``buckets.py`` it is a *bucket*, which many exact shapes share.
Runs 1 and 2 of an exact shape are served by its bucket's program. At run 3 the exact shape is compiled (*promoted*) and
serves every later run, so that a shape seen once or twice never pays for a compilation of its own.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Literal, get_args

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.runtime.keys import Key, Shape, key_name
from minfer_jax.runtime.program import Program

log = logging.getLogger("minfer_jax")

PROMOTE_AT = 3
"""The run of an exact shape at which it is compiled."""

MAX_SHAPES = 10_000
"""Exact shapes that are remembered, the most recently used ones."""

MAX_PROGRAMS = 64
MAX_BYTES = 1 << 30

Promotion = Literal["background", "blocking", "off"]
Compile = Callable[[], Program]
Prepare = Callable[[Shape], Compile]
"""Reads what a compilation needs from the arguments at hand; the compilation itself may then happen later."""


@dataclass
class Usage:
    """One exact shape: how often it ran, which bucket stands in for it, and how often its own program served it."""

    bucket: Shape
    runs: int = 0
    hits: int = 0
    failed: bool = False


class ProgramCache:
    """Least recently used programs within a bound of number and of device memory; safe to share between threads.

    promotion: "blocking" compiles an exact shape inside its third run; "background" in a thread, while the bucket goes
    on serving it; "off" never. max_programs, max_bytes: bounds; the bytes are those that executables hold on the device
    between calls (code and constants).
    """

    def __init__(
        self, promotion: Promotion = "background", max_programs: int = MAX_PROGRAMS, max_bytes: int = MAX_BYTES
    ) -> None:
        if promotion not in get_args(Promotion):
            raise ArgumentError(f'promotion is {promotion!r}; choose "background", "blocking" or "off"')
        self.promotion = promotion
        self._max_programs = check_integer("max_programs", max_programs, 1)
        self._max_bytes = check_integer("max_program_bytes", max_bytes, 0)
        self._lock = threading.Lock()  # guards everything below; never held while compiling
        self._programs: OrderedDict[Key, Program] = OrderedDict()  # the least recently used first
        self._compiling: dict[Key, Future[Program]] = {}
        self._usage: OrderedDict[Key, Usage] = OrderedDict()
        self._promotions: dict[Key, tuple[Shape, Compile]] = {}  # left to the worker, the first one under way
        self._worker: threading.Thread | None = None
        self.compiles: int = 0
        self.disk_hits: int = 0
        self.evictions: int = 0

    def serve(
        self, uid: str, exact: Shape, bucket: Shape, promote: bool, prepare: Prepare
    ) -> tuple[Program, int, bool]:
        """Count a run of ``exact`` and give the program that serves it, compiled if need be, the number of the run, and
        whether it is promoted."""
        key = (uid, exact)
        with self._lock:
            usage = self._usage.setdefault(key, Usage(bucket))
            self._usage.move_to_end(key)
            if len(self._usage) > MAX_SHAPES:
                self._usage.popitem(last=False)
            usage.runs += 1
            run = usage.runs
            due = promote and self.promotion != "off" and run >= PROMOTE_AT and not usage.failed
        program = self._promoted(key, bucket, prepare) if due and exact != bucket else None
        if program is None:
            program = self._program((uid, bucket), lambda: prepare(bucket)())
        promoted = due and program.shape == exact
        with self._lock:
            usage.hits += promoted
            program.calls += 1
        return program, run, promoted

    def fall_back(self, uid: str, exact: Shape, bucket: Shape, error: Exception, prepare: Prepare) -> Program:
        """The promoted program of ``exact`` did not run: from now on its bucket's program serves it; here it is."""
        self._give_up((uid, exact), bucket, error)
        program = self._program((uid, bucket), lambda: prepare(bucket)())
        with self._lock:
            self._usage[uid, exact].hits -= 1
            program.calls += 1
        return program

    def settle(self) -> None:
        """Wait until no promotion is under way."""
        while (worker := self._worker) is not None:
            worker.join()

    def snapshot(self) -> tuple[dict[Key, Usage], dict[Key, Program]]:
        """What is known of every exact shape, and every compiled program, most recently used last."""
        with self._lock:
            return dict(self._usage), dict(self._programs)

    def _give_up(self, key: Key, bucket: Shape, error: Exception) -> None:
        """No promotion for a shape that failed once: it is said once and never tried again."""
        with self._lock:
            usage = self._usage.setdefault(key, Usage(bucket))
            said, usage.failed = usage.failed, True
            self._programs.pop(key, None)
            self._promotions.pop(key, None)
        if not said:
            reason = str(error).split("\n")[0]
            log.warning("no program for the exact shape %s, its bucket %s serves it: %s", key[1], bucket, reason)

    def _promoted(self, key: Key, bucket: Shape, prepare: Prepare) -> Program | None:
        """The exact program, or None when the bucket is to serve this run."""
        try:
            if self.promotion == "background" and self._is_left_to_worker(key, bucket, prepare):
                return None
            return self._program(key, lambda: prepare(key[1])())
        except Exception as error:
            self._give_up(key, bucket, error)
            return None

    def _is_left_to_worker(self, key: Key, bucket: Shape, prepare: Prepare) -> bool:
        """Whether the promotion of a key is not there yet; it is begun if need be."""
        with self._lock:
            if key in self._programs:
                return False
            if key in self._promotions or not threading.main_thread().is_alive():
                return True
        compile = prepare(key[1])
        with self._lock:
            if self._usage[key].failed:
                return True
            self._promotions.setdefault(key, (bucket, compile))
            if self._worker is None:
                # Not a daemon: a process must not end inside XLA. At its end what waits is dropped.
                worker = threading.Thread(target=self._promote_all, name="minfer-jax promotion", daemon=False)
                worker.start()
                self._worker = worker
        return True

    def _promote_all(self) -> None:
        while True:
            with self._lock:
                if not self._promotions or not threading.main_thread().is_alive():
                    self._promotions.clear()
                    self._worker = None
                    return
                key, (bucket, compile) = next(iter(self._promotions.items()))
            try:
                self._program(key, compile)
            except Exception as error:
                self._give_up(key, bucket, error)
            finally:
                with self._lock:
                    self._promotions.pop(key, None)

    def _program(self, key: Key, compile: Compile) -> Program:
        """The program of a key; of several threads that ask at once one compiles and the others wait for it."""
        while True:
            with self._lock:
                if program := self._programs.get(key):
                    self._programs.move_to_end(key)
                    return program
                future = self._compiling.get(key)
                if mine := future is None:
                    future = self._compiling[key] = Future()
            if mine:
                return self._compile(key, compile, future)
            try:
                return future.result()
            except CancelledError:  # the thread that compiled it was interrupted
                continue

    def _compile(self, key: Key, compile: Compile, future: "Future[Program]") -> Program:
        try:
            program = compile()
        except BaseException as error:
            with self._lock:
                del self._compiling[key]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        with self._lock:
            del self._compiling[key]
            self._programs[key] = program
            self.disk_hits += program.from_disk
            self.compiles += not program.from_disk
            self._evict(keep=key)
        future.set_result(program)
        how = "read from disk" if program.from_disk else "compiled"
        log.info("program %s %s in %.2f s", key_name(key), how, program.compile_seconds)
        return program

    def _evict(self, keep: Key) -> None:
        held = sum(program.device_bytes for program in self._programs.values())
        for key, program in list(self._programs.items()):
            if len(self._programs) <= self._max_programs and held <= self._max_bytes:
                return
            if key != keep:
                del self._programs[key]
                held -= program.device_bytes
                self.evictions += 1
