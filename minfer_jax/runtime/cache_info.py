"""What a Runtime tells about its programs."""

from dataclasses import dataclass

from minfer_jax.records import Record
from minfer_jax.runtime.keys import key_name
from minfer_jax.runtime.program_cache import ProgramCache


@dataclass(frozen=True)
class ShapeInfo(Record):
    """One exact shape. bucket: the padded shape that stands in for it. promoted: whether it has a program of its own.
    hits: runs served by that. compile_seconds: what that took. failed: it could not be had."""

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


def describe(cache: ProgramCache) -> CacheInfo:
    """The state of a cache, as it is now."""
    usage, programs = cache.snapshot()
    return CacheInfo(
        shapes={
            key_name(key): ShapeInfo(
                shape=str(key[1]),
                bucket=str(u.bucket),
                runs=u.runs,
                promoted=u.promoted,
                hits=u.hits,
                compile_seconds=u.compile_seconds,
                failed=u.failed,
            )
            for key, u in usage.items()
        },
        programs={
            key_name(key): ProgramInfo(p.calls, p.compile_seconds, p.from_disk, p.device_bytes, p.temp_bytes)
            for key, p in programs.items()
        },
        compiles=cache.compiles,
        disk_hits=cache.disk_hits,
        evictions=cache.evictions,
    )
