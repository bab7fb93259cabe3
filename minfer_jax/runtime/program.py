"""One compiled program and what can be said about it."""

import gc
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import jax.monitoring

from minfer_jax.runtime import hlo
from minfer_jax.runtime.keys import Shape, placement, set_to

_thread = threading.local()  # of a thread that compiles: whether the executable came from disk


@contextmanager
def no_collection() -> Iterator[None]:
    """Without the garbage collector, which the many small objects of a trace call for: looking through all that JAX
    has imported takes longer than the trace."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Program:
    """An executable for one shape. Call it with the arrays it was compiled for; static arguments are part of it.

    compile_seconds: tracing, lowering and compiling, or reading from the persistent cache (``from_disk``).
    device_bytes: what it holds on the device between calls, code and constants. calls: how often it was called.
    """

    def __init__(self, shape: Shape, compiled: Any, compile_seconds: float, from_disk: bool) -> None:
        self.shape = shape
        self.compile_seconds = compile_seconds
        self.from_disk = from_disk
        self.calls = 0
        self.device_bytes: int = compiled.memory_analysis().generated_code_size_in_bytes
        self._compiled = compiled

    def __call__(self, *args: Any) -> Any:
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            with jax.disable_jit(False):
                return self._compiled(*args)
        return self._compiled(*args)

    @property
    def temp_bytes(self) -> int:
        """Scratch memory of one call."""
        return self._compiled.memory_analysis().temp_size_in_bytes

    @property
    def text(self) -> str:
        """The optimised HLO module."""
        return self._compiled.as_text()

    @cached_property
    def splits(self) -> int:
        """Host-to-host segments of device work in one call."""
        return hlo.splits(self.text)

    @cached_property
    def kernels(self) -> int:
        """Launches of device work in one call."""
        return hlo.kernels(self.text)


def specs(args: Sequence[Any]) -> Sequence[Any]:
    """Shapes and dtypes in place of arrays, which are then free to be donated or dropped."""
    return jax.tree.map(_spec, args)


def _spec(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placement(x))


def compile_program(
    shape: Shape, function: Any, args: Sequence[Any], static: dict[str, Any], settings: tuple
) -> Program:
    """Trace, lower and compile a jitted function for ``args``, arrays or specs, and its ``static`` arguments, with JAX
    set to ``settings``."""
    began = time.perf_counter()
    _thread.from_disk = False
    with set_to(settings), no_collection():
        compiled = function.trace(*args, **static).lower().compile()
    function.clear_cache()  # else JAX keeps the executable for itself, and dropping a Program frees nothing
    return Program(shape, compiled, time.perf_counter() - began, _thread.from_disk)


def _note(event: str, **_: object) -> None:
    if event == "/jax/compilation_cache/cache_hits":
        _thread.from_disk = True


jax.monitoring.register_event_listener(_note)
