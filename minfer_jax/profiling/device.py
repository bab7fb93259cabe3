"""What the device is called, and how fast it moves memory."""

import platform
import time
from functools import partial
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp

_COPIED = 1 << 28  # bytes: beyond every cache, and little beside a model
_ROUNDS, _PER_ROUND = 5, 8


def device_name() -> str:
    """Name of the accelerator, or of the processor."""
    if jax.default_backend() != "cpu":
        return jax.devices()[0].device_kind
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":", 1)[1].strip() if names else platform.machine()


@partial(jax.jit, donate_argnames="target", keep_unused=True)
def _copy(source: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.copy(source)  # into the memory of target: a fresh one would cost page faults on a CPU


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a large copy on the device: the median of some rounds."""
    source = jnp.zeros(_COPIED // 4, jnp.float32)
    target = jax.block_until_ready(_copy(source, jnp.ones_like(source)))
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(_PER_ROUND):
            target = _copy(source, target)
        jax.block_until_ready(target)
        seconds.append((time.perf_counter() - began) / _PER_ROUND)
    return 2 * _COPIED / median(seconds)
