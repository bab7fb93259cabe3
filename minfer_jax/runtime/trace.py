"""What one program call cost, as a line on stderr (MINFER_GRAPH_TRACE=1) or as records for a caller."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from minfer_jax.env import graph_trace
from minfer_jax.records import Record


@dataclass
class TraceRecord(Record):
    """One program call.

    key: graph and exact shape. run: its number among the runs of that shape. program: shape of the program that served
    it. promoted: whether that is the shape's own. splits: host-to-host segments of device work. kernels: launches of
    device work in one execution, in a loop of unknown length those of one round. Times in microseconds: began_us is
    when the call began, by the clock of ``time.perf_counter``; dispatch_us until the call returned to Python (on CPU a
    small program has run by then); device_us from then until its results were there, None unless asked to block;
    readback_us for bringing readback_bytes to the host, None where nothing was read; without blocking it holds the
    waiting for the program too.
    """

    key: str
    run: int
    program: str
    promoted: bool
    splits: int
    kernels: int
    began_us: float
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
        self._listeners: dict[int, tuple[list[TraceRecord], bool]] = {}

    @contextmanager
    def listen(self, block: bool) -> Iterator[list[TraceRecord]]:
        records: list[TraceRecord] = []
        self._listeners[id(records)] = (records, block)
        try:
            yield records
        finally:
            del self._listeners[id(records)]

    @property
    def wanted(self) -> bool:
        return bool(self._listeners) or graph_trace()

    @property
    def blocks(self) -> bool:
        return any(block for _, block in list(self._listeners.values()))

    def emit(self, record: TraceRecord) -> None:
        for records, _ in list(self._listeners.values()):
            records.append(record)
        if graph_trace() and sys.stderr is not None:
            with suppress(OSError):  # a trace that nobody can read is no reason to fail
                print(record, file=sys.stderr)
