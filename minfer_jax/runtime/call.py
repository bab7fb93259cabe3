"""A program call under way, and how it is timed when somebody listens."""

import time
from typing import Any

import jax

from minfer_jax.runtime.keys import Key, Shape, key_name
from minfer_jax.runtime.program import Program
from minfer_jax.runtime.trace import Tracer, TraceRecord


class Call:
    """A program call under way: its results, the shape that was run, and what is to be told once they are read."""

    def __init__(self, out: Any, shape: Shape, tracer: Tracer, record: TraceRecord | None) -> None:
        self.out: Any = out
        self.shape: Shape = shape
        self._tracer, self._record = tracer, record

    def read(self, arrays: Any = None) -> Any:
        """The results, or those of them that are given, on the host."""
        began = time.perf_counter()
        values = jax.device_get(self.out if arrays is None else arrays)
        self.finish(time.perf_counter() - began, sum(value.nbytes for value in jax.tree.leaves(values)))
        return values

    def finish(self, read_seconds: float | None = None, read_bytes: int = 0) -> None:
        """Complete the record; None: the results stay on the device."""
        if (record := self._record) is not None:
            record.readback_us = None if read_seconds is None else read_seconds * 1e6
            record.readback_bytes = read_bytes
            self._tracer.emit(record)


def traced_call(program: Program, args: tuple[Any, ...], tracer: Tracer, key: Key, run: int, promoted: bool) -> Call:
    """Call a program, with a record of it if somebody wants one."""
    if not tracer.wanted:
        return Call(program(*args), program.shape, tracer, None)
    began = time.perf_counter()
    out = program(*args)
    dispatched = time.perf_counter()
    device_us = None
    if tracer.blocks:
        jax.block_until_ready(out)
        device_us = (time.perf_counter() - dispatched) * 1e6
    record = TraceRecord(
        key=key_name(key),
        run=run,
        program=str(program.shape),
        promoted=promoted,
        splits=program.splits,
        kernels=program.kernels,
        began_us=began * 1e6,
        dispatch_us=(dispatched - began) * 1e6,
        device_us=device_us,
    )
    return Call(out, program.shape, tracer, record)
