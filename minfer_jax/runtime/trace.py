"""What one program call cost, as a line on stderr (MINFER_GRAPH_TRACE=1) or as records for a caller."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from minfer_jax.env import graph_trace
from minfer_jax.records import Record
from minfer_jax.runtime.keys import Key, Shape, key_name
from minfer_jax.runtime.program import Program


@dataclass
class TraceRecord(Record):
    """One program call.

    key: graph and exact shape. run: its number among the runs of that shape. program: shape of the program that served
    it. promoted: whether that is the shape's own. splits: host-to-host segments of device work. kernels: launches of
    device work in one execution. Times in microseconds: dispatch_us until the call returned to Python (on CPU a small
    program has run by then); device_us from then until its results were there, None unless asked to block;
    readback_us for bringing readback_bytes to the host, None where nothing was read.
    """

    key: str
    run: int
    program: str
    promoted: bool
    splits: int
    kernels: int
    dispatch_us: float
    device_us: float | None = None
    readback_us: float | None = None
    readback_bytes: int = 0

    def __str__(self) -> str:
        served = "promoted" if self.promoted else f"bucket ({self.program})"
        device = "-" if self.device_us is None else f"{self.device_us:.0f}"
        readback = "-" if self.readback_us is None else f"{self.readback_us:.0f}"
        return (
            f"minfer-jax trace: {self.key} run {self.run} {served} splits {self.splits} kernels {self.kernels} "
            f"dispatch {self.dispatch_us:.0f} us device {device} us readback {readback} us {self.readback_bytes} bytes"
        )


class Tracer:
    """Collects records while somebody wants them."""

    def __init__(self) -> None:
        self._listeners: list[tuple[list[TraceRecord], bool]] = []

    @contextmanager
    def listen(self, block: bool) -> Iterator[list[TraceRecord]]:
        listener = ([], block)
        self._listeners.append(listener)
        try:
            yield listener[0]
        finally:
            self._listeners = [other for other in self._listeners if other is not listener]

    @property
    def wanted(self) -> bool:
        return bool(self._listeners) or graph_trace()

    @property
    def blocks(self) -> bool:
        return any(block for _, block in self._listeners)

    def emit(self, record: TraceRecord) -> None:
        for records, _ in self._listeners:
            records.append(record)
        if graph_trace():
            print(record, file=sys.stderr)


class Call:
    """A program call under way: its results, the shape that was run, and what is to be told once they are read."""

    def __init__(self, out: Any, shape: Shape, tracer: Tracer, record: TraceRecord | None) -> None:
        self.out, self.shape = out, shape
        self._tracer, self._record = tracer, record

    def read(self, arrays: Any) -> Any:
        """Those of the results, on the host."""
        began = time.perf_counter()
        values = jax.device_get(arrays)
        self.tell(time.perf_counter() - began, sum(value.nbytes for value in jax.tree.leaves(values)))
        return values

    def tell(self, read_seconds: float | None = None, read_bytes: int = 0) -> None:
        """Complete the record; None: the results stay on the device."""
        if (record := self._record) is not None:
            record.readback_us = None if read_seconds is None else read_seconds * 1e6
            record.readback_bytes = read_bytes
            self._tracer.emit(record)


def traced_call(program: Program, args: tuple, tracer: Tracer, key: Key, run: int, promoted: bool) -> Call:
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
        dispatch_us=(dispatched - began) * 1e6,
        device_us=device_us,
    )
    return Call(out, program.shape, tracer, record)
