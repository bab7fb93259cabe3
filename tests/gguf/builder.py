"""GGUF files byte by byte, true or false, and a guard for time and memory. No check stands in the way of a lie."""

import contextlib
import resource
import signal
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter


def text(value: str | bytes) -> bytes:
    """Return a GGUF string: length, then bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: GGUFValueType | int, value: bytes) -> bytes:
    """Return a metadata pair with an already packed value."""
    return text(key) + struct.pack("<I", kind) + value


def array(kind: GGUFValueType | int, count: int, items: bytes) -> bytes:
    """Return a packed array value."""
    return struct.pack("<IQ", kind, count) + items


def entry(name: str | bytes, dims: Sequence[int], kind: int = GGMLQuantizationType.F32, offset: int = 0) -> bytes:
    """Return a line of the tensor table; `dims` in file order."""
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


ARCHITECTURE = pair("general.architecture", GGUFValueType.STRING, text("llama"))


def gguf_bytes(
    pairs: Sequence[bytes] = (ARCHITECTURE,),
    entries: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a whole file; the counts can be set to what is not there."""
    counts = (len(entries) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(entries)
    return header + bytes(-len(header) % alignment) + data


def nested_array(depth: int) -> bytes:
    """Return a packed array of arrays, `depth` levels deep, each with one item, the last empty."""
    levels = struct.pack("<IQ", GGUFValueType.ARRAY, 1) * (depth - 1)
    return levels + array(GGUFValueType.UINT32, 0, b"")


def write_small_model(path: Path, *, n_tensors: int = 6, prefix: str = "blk", **options: Any) -> Path:
    """Write a small sound model with the `gguf` library: a few keys, a vocabulary, tensors of several types.

    `options` go to ``GGUFWriter``, for instance ``split_max_tensors=2``.
    """
    import numpy as np
    from gguf.quants import quantize

    rng = np.random.default_rng(n_tensors)
    writer = GGUFWriter(path, "llama", **options)
    writer.add_name("small")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_add_bos_token(False)
    writer.add_token_list(["<s>", "</s>", "a", "b", "été", "\u2581x"])
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0, -4.0, -5.0])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    kinds = [GGMLQuantizationType[name] for name in ("F32", "Q4_0", "F16", "Q8_0", "BF16", "Q5_1")]
    for index in range(n_tensors):
        kind = kinds[index % len(kinds)]
        weights = rng.standard_normal((3, 64), dtype=np.float32)
        raw = None if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16) else kind
        writer.add_tensor(f"{prefix}.{index}.weight", quantize(weights, kind), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextlib.contextmanager
def limits(seconds: float, megabytes: int) -> Iterator[None]:
    """Let the body run for so long, and take so much more memory than there is now; then TimeoutError or MemoryError.

    For the main thread on Linux. Neither exception belongs to the package, so breaking a limit fails a test.
    """

    def expired(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, expired)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (megabytes << 20), hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, handler)
