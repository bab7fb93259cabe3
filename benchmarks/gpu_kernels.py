"""Quantised matrix products on the GPU: every format, shape and number of rows, verified and timed by device time.

python -m benchmarks.gpu_kernels [--formats Q4_0 Q4_K] [--shapes 18944x3584] [--rows 1 8]

One line a case: microseconds of the kernel (median, by the profiler), GB/s of the weights' bytes, the error
||y - y64|| / ||y64|| against float64 products of the exact weights, over some of the rows. Weights rotate over so many
copies that the cache never holds them.
"""

import argparse
import functools
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import write_record
from pallas_kernels.compat import why_not_available
from pallas_kernels.quantised_matmul import FORMATS, Layout, pack, quantised_matmul, unpack
from pallas_kernels.quantised_matmul.reference import dequantise
from pallas_kernels.quantised_matmul.testing import random_fields
from pallas_kernels.shapes import MODELS

_LARGE, _SMALL = MODELS["qwen2.5-7b"], MODELS["qwen2.5-0.5b"]
SHAPES = [
    f"{n}x{k}"
    for n, k in (
        (_LARGE.ffn, _LARGE.width),
        (_LARGE.width, _LARGE.ffn),
        (_SMALL.ffn, _SMALL.width),
        (_SMALL.width, _SMALL.ffn),
        (_SMALL.width, _SMALL.width),
        (_SMALL.vocab, _SMALL.width),
    )
]
COLD_BYTES = 400_000_000  # several times the second-level cache
CALLS = 24


@dataclass
class Result:
    format: str
    shape: str
    rows: int
    microseconds: float
    gigabytes_per_second: float
    error: float


def device_times(run: Callable[[], None]) -> dict[str, list[float]]:
    """Microseconds of each kernel by name while run() runs, as the profiler reads them off the device."""
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        for path in Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                if plane.name.startswith("/device:GPU"):
                    for line in plane.lines:
                        if line.name.startswith("Stream"):
                            for event in line.events:
                                times[event.name].append(event.duration_ns / 1e3)
    return times


@functools.partial(jax.jit, static_argnums=(0, 1))
def _random_stack(layout: Layout, copies: int) -> jax.Array:
    """[copies, tiles, words], one after another so that codes of one copy alone are ever expanded."""
    return jax.lax.map(
        lambda key: pack(layout, random_fields(layout, key)), jax.random.split(jax.random.key(7), copies)
    )


def _some_rows(layout: Layout, packed: jax.Array, tiles: np.ndarray) -> np.ndarray:
    """The weights of those tiles, exactly, as float64."""
    part = Layout(layout.format, 16 * len(tiles), layout.columns)
    fields = jax.tree.map(np.asarray, unpack(part, packed[tiles]))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return np.asarray(dequantise(part.fmt, fields)).astype(np.float64)


def measure(layout: Layout, stack: jax.Array, rows: int) -> Result:
    x = jax.random.normal(jax.random.key(1), (rows, layout.columns))

    @jax.jit
    def call(stack: jax.Array, x: jax.Array, layer: jax.Array) -> jax.Array:
        # In a model x and the layer's number were just written, by another kernel. This one's time is not counted.
        fresh = x + 0 * layer.astype(jnp.float32)
        return quantised_matmul(layout, stack, fresh, layer=layer + (fresh[0, 0] > 1e9).astype(jnp.int32))

    layers = [jnp.asarray(i, jnp.int32) for i in range(stack.shape[0])]
    y = np.asarray(call(stack, x, layers[-1]), np.float64)

    whole = layout.rows // 16
    tiles = np.unique(np.linspace(0, whole - 1, 16).astype(int))
    w = _some_rows(layout, stack[-1], tiles)
    right = np.asarray(x, np.float64) @ w.T
    ours = y[:, (tiles[:, None] * 16 + np.arange(16)).ravel()]
    error = float(np.linalg.norm(ours - right) / np.linalg.norm(right))

    def run() -> None:
        jax.block_until_ready([call(stack, x, layers[i % len(layers)]) for i in range(CALLS)])

    times = device_times(run)
    name = max(times, key=lambda name: sum(times[name]))
    spent = statistics.median(times[name][len(times[name]) // 3 :]) * (len(times[name]) / CALLS)
    size = stack.nbytes / stack.shape[0]
    return Result(layout.format, f"{layout.rows}x{layout.columns}", rows, spent, size / spent / 1e3, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8])
    args = parser.parse_args()
    if (reason := why_not_available()) is not None:
        raise SystemExit(f"the kernels do not run here: {reason}")
    results = []
    print(f"{'format':8}{'N x K':>14}{'rows':>6}{'us':>10}{'GB/s':>8}{'error':>10}", flush=True)
    for shape in args.shapes:
        n, k = (int(side) for side in shape.split("x"))
        for name in args.formats:
            if k % FORMATS[name].block:
                continue
            layout = Layout(name, n, k)
            stack = _random_stack(layout, max(2, -(-COLD_BYTES // (layout.tiles * layout.tile_bytes))))
            for rows in args.rows:
                try:
                    r = measure(layout, stack, rows)
                except Exception as error:  # a case that fails is a line of its own
                    print(f"{name:8}{shape:>14}{rows:>6}  {type(error).__name__}: {str(error)[:300]}", flush=True)
                    continue
                results.append(asdict(r))
                print(
                    f"{name:8}{shape:>14}{rows:>6}{r.microseconds:>10.2f}{r.gigabytes_per_second:>8.0f}{r.error:>10.1e}",
                    flush=True,
                )
    whole = args.formats == list(FORMATS) and args.shapes == SHAPES
    print(write_record("gpu_kernels", results, partial=not whole))


if __name__ == "__main__":
    main()
