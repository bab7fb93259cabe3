"""What a Runtime did and when, from its trace."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minfer_jax.errors import ArgumentError
from minfer_jax.runtime import TraceRecord
from minfer_jax.viz.axes import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PARTS = {"dispatch_us": ("dispatch", "C0"), "device_us": ("device", "C1"), "readback_us": ("readback", "C2")}


def timeline(records: Sequence[TraceRecord], *, ax: "Axes | None" = None) -> "Axes":
    """Program calls as bars in time: a line for each shape in each program that served it, the first at the top.

    records: of ``runtime.trace()``. x: milliseconds since the first call began. A bar is a call: dispatch, then the
    device (only of ``trace(block=True)``), then readback, see :class:`TraceRecord`. What is between bars is not in any
    call: Python, and at a program's first run its compilation.

    Raises ArgumentError without records, UnsupportedError without matplotlib.
    """
    records = list(records)
    if not records or not all(isinstance(record, TraceRecord) for record in records):
        raise ArgumentError("records holds no trace; give the list that `with runtime.trace() as records` fills")
    lines: dict[str, int] = {}
    for record in records:
        lines.setdefault(_line(record), len(lines))
    ax = axes_or_new(ax, 7.6, 0.9 + 0.42 * len(lines))
    start = records[0].began_us
    for name, (label, color) in _PARTS.items():
        bars = [(lines[_line(r)], (_begin(r, name) - start) / 1e3, (getattr(r, name) or 0.0) / 1e3) for r in records]
        if not any(getattr(record, name) is not None for record in records):
            continue
        y, left, width = zip(*bars, strict=True)
        ax.barh(y, width, left=left, height=0.6, color=color, label=label, edgecolor="white", linewidth=0.3)
    ax.set_yticks(range(len(lines)), list(lines), fontsize="small")
    ax.invert_yaxis()
    ax.set_xlabel("milliseconds since the first call")
    ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def _line(record: TraceRecord) -> str:
    shape = record.key.partition("/")[2]
    return shape if shape == record.program else f"{shape}\nin bucket {record.program}"


def _begin(record: TraceRecord, part: str) -> float:
    """When a part of a call began, in microseconds: behind the parts before it."""
    names = list(_PARTS)
    return record.began_us + sum(getattr(record, name) or 0.0 for name in names[: names.index(part)])
