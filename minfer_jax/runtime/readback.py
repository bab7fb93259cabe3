"""How a large result of a program, such as logits, comes back to the host."""

import ctypes
import itertools
import logging
import math
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.env import pinned_readback
from minfer_jax.errors import UnsupportedError
from minfer_jax.native import READBACK, library

log = logging.getLogger("minfer_jax")

Route = Literal["ffi", "pinned_host", "plain"]
"""ffi: a custom call copies the result into a buffer of ours, page-locked on a GPU. pinned_host: JAX puts it into
page-locked memory of its own. plain: it stays on the device until it is read."""

# Fastest first, as benchmarks/overhead.py measures it. On a CPU results lie in host memory anyway, to be read in place.
_FASTEST: dict[str, tuple[Route, ...]] = {"gpu": ("pinned_host", "ffi", "plain"), "cpu": ("plain",)}

_FIRST_BYTES = 4 << 20


def deliver(x: jax.Array, route: Route, slot: int | None = None) -> jax.Array:
    """What a program returns in place of its result x (float32 for ffi, which needs the slot of a buffer)."""
    if route == "ffi":
        assert slot is not None
        return jax.ffi.ffi_call(READBACK, jax.ShapeDtypeStruct((), jnp.int32))(x, slot=np.int64(slot))
    return jax.device_put(x, jax.memory.Space.Host) if route == "pinned_host" else x


class Readback:
    """The host buffer for the results of one Runtime, and the lock of those who use it.

    route: None takes the fastest that there is here. slot: how programs name the buffer.
    Raises UnsupportedError when the route asked for is not available, and says why.
    """

    def __init__(self, route: Route | None = None) -> None:
        if route is not None and (why := _lacking(route)):
            raise UnsupportedError(f"readback by {route!r} is not available: {why}")
        backend = jax.default_backend()
        self._route: Route = route or next(r for r in _FASTEST.get(backend, ("plain",)) if not _lacking(r))
        self._page_locked = backend == "gpu"
        self._buffer: np.ndarray | None = None
        self._lock = threading.Lock()
        self.slot = _take_slot(self)

    @property
    def route(self) -> Route:
        """The route as things are: MINFER_NO_PINNED_READBACK is read at every call."""
        return self._route if pinned_readback() else "plain"

    @property
    def small(self) -> Route:
        """The route of a few numbers, for which no buffer of ours is needed."""
        return "pinned_host" if self.route == "pinned_host" else "plain"

    @contextmanager
    def claim(self, n_bytes: int) -> Iterator["Claim"]:
        """The right to run a program whose result has n_bytes and to fetch that result; by ffi, one at a time.

        The first claim allocates 4 MiB or what it needs, a later one only when it needs more than there is. When that
        fails, this and all later results come back by the plain route; a process says so once.
        """
        if (route := self.route) != "ffi":
            yield Claim(self, route)
            return
        with self._lock:
            self._reserve(n_bytes)
            yield Claim(self, self._route)

    def _reserve(self, n_bytes: int) -> None:
        if self._route != "ffi" or (self._buffer is not None and self._buffer.nbytes >= n_bytes):
            return
        self._buffer = None  # frees the old one first, or when the last view of it goes
        self._buffer = _allocate(self.slot, max(n_bytes, _FIRST_BYTES), self._page_locked)
        if self._buffer is None:
            self._route = "plain"
            if next(_failures) == 0:
                log.warning("no memory for a readback of %d bytes: results come back by the ordinary copy", n_bytes)


@dataclass(frozen=True)
class Claim:
    """Held while one program runs whose result `deliver` gives by ``route``, and until that is fetched."""

    _readback: Readback
    route: Route

    def fetch(self, out: jax.Array, shape: tuple[int, ...], copy: bool = False) -> np.ndarray:
        """The result on the host, float32 of ``shape``, once it is there. out: what the program returned for it.

        By ffi it is a view of the buffer, valid until the next readback, which overwrites it; ``copy`` gives an array
        of the caller's own. What is not a copy is read-only.
        """
        if self.route == "ffi":
            out.block_until_ready()
            buffer, n = self._readback._buffer, math.prod(shape)
            assert buffer is not None
            host = buffer[:n]
        else:
            host = np.asarray(out)
        return np.array(host.reshape(shape)) if copy else host.reshape(shape)


def _lacking(route: str) -> str | None:
    if route == "ffi":
        if jax.default_backend() not in ("cpu", "gpu"):
            return f"there is no custom call for {jax.default_backend()}"
        return None if library() else "the native library is not there"
    if route == "pinned_host":
        kinds = [memory.kind for memory in jax.devices()[0].addressable_memories()]
        return None if route in kinds else f"the device has no such memory (it has {', '.join(kinds)})"
    return None if route == "plain" else "choose ffi, pinned_host or plain"


_failures = itertools.count()
_slots: set[int] = set()
_slots_lock = threading.Lock()


def _take_slot(owner: Readback) -> int:
    # The lowest that is free: a slot is part of compiled programs, and low numbers find them again in the next process.
    with _slots_lock:
        slot = next(slot for slot in itertools.count() if slot not in _slots)
        _slots.add(slot)
    weakref.finalize(owner, _slots.discard, slot)
    return slot


def _allocate(slot: int, n_bytes: int, page_locked: bool) -> np.ndarray | None:
    """A new buffer for the slot, freed with the last view of this read-only float32 array; None if there is none."""
    lib = library()
    assert lib is not None
    address = lib.minfer_readback_reserve(slot, n_bytes, page_locked)
    if address is None:
        return None
    memory = (ctypes.c_float * (n_bytes // 4)).from_address(address)
    weakref.finalize(memory, lib.minfer_readback_release, address, page_locked).atexit = False
    buffer = np.ctypeslib.as_array(memory)
    buffer.flags.writeable = False
    return buffer
