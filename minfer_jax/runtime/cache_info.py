"""What a Runtime tells about its programs."""

from dataclasses import dataclass
from typing import Any

from minfer_jax.display import html
from minfer_jax.display.text import counted, table_lines
from minfer_jax.records import Record
from minfer_jax.runtime.keys import Shape, key_name
from minfer_jax.runtime.program import Program
from minfer_jax.runtime.program_cache import ProgramCache, Usage


@dataclass(frozen=True)
class ShapeInfo(Record):
    """One exact shape. bucket: the padded shape that stands in for it. promoted: whether a program of its own
    serves it. hits: runs served by that. compile_seconds: what that took. failed: it could not be had."""

    shape: str
    bucket: str
    runs: int
    promoted: bool
    hits: int
    compile_seconds: float
    failed: bool


@dataclass(frozen=True)
class ProgramInfo(Record):
    """One compiled program. from_disk: read from the persistent cache. device_bytes: held on the device between calls,
    code and constants. temp_bytes: scratch memory of a call."""

    calls: int
    compile_seconds: float
    from_disk: bool
    device_bytes: int
    temp_bytes: int


@dataclass(frozen=True)
class CacheInfo(Record):
    """State of a Runtime's programs. shapes: by graph and exact shape; programs: by graph and compiled shape, the least
    recently used first. compiles: programs compiled; disk_hits: programs read from the persistent cache instead;
    evictions: programs dropped to stay within the bounds."""

    shapes: dict[str, ShapeInfo]
    programs: dict[str, ProgramInfo]
    compiles: int
    disk_hits: int
    evictions: int

    def summary(self) -> str:
        """One line on all programs."""
        told = f"{self.compiles} compiled, {self.disk_hits} from disk, {self.evictions} dropped"
        return f"{counted(len(self.programs), 'program')}: {told}"

    def _tables(self) -> list[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
        shapes = [(s.shape, s.bucket, s.runs, s.promoted, s.hits, s.failed) for s in self.shapes.values()]
        programs = [
            (name.partition("/")[2], p.calls, p.compile_seconds, p.from_disk, p.device_bytes, p.temp_bytes)
            for name, p in self.programs.items()
        ]
        return [
            (("shape", "bucket", "runs", "promoted", "hits", "failed"), shapes),
            (("program", "calls", "compile s", "from disk", "bytes", "scratch bytes"), programs),
        ]

    def __str__(self) -> str:
        tables = ["\n".join(["", *table_lines(rows, header)]) for header, rows in self._tables()]
        return "\n".join([f"CacheInfo: {self.summary()}", *tables])

    def _repr_html_(self) -> str:
        tables = (html.table(rows, header) for header, rows in self._tables())
        return html.block("CacheInfo", *tables, note=self.summary())


def describe(cache: ProgramCache) -> CacheInfo:
    """The state of a cache, as it is now."""
    usage, programs = cache.snapshot()
    return CacheInfo(
        shapes={key_name(key): _shape_info(key[1], u, programs.get(key)) for key, u in usage.items()},
        programs={
            key_name(key): ProgramInfo(p.calls, p.compile_seconds, p.from_disk, p.device_bytes, p.temp_bytes)
            for key, p in programs.items()
        },
        compiles=cache.compiles,
        disk_hits=cache.disk_hits,
        evictions=cache.evictions,
    )


def _shape_info(shape: Shape, usage: Usage, program: Program | None) -> ShapeInfo:
    own = program if usage.hits else None
    return ShapeInfo(
        shape=str(shape),
        bucket=str(usage.bucket),
        runs=usage.runs,
        promoted=own is not None,
        hits=usage.hits,
        compile_seconds=own.compile_seconds if own and shape != usage.bucket else 0.0,
        failed=usage.failed,
    )
