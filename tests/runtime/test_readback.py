"""Results through a host buffer of ours, by a custom call. The tests of the claims of A2 have the names of its rows."""

import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import get_args

import jax
import numpy as np
import pytest

from minfer_jax.errors import UnsupportedError
from minfer_jax.native import READBACK
from minfer_jax.runtime import readback
from minfer_jax.runtime.readback import Readback, Route, deliver
from tests.native.built import needs_library

ROUTES = [pytest.param(route, marks=needs_library if route == "ffi" else ()) for route in get_args(Route)]
Patch, Log = pytest.MonkeyPatch, pytest.LogCaptureFixture
MIB = 1 << 20


def program(owner: Readback, route: Route = "ffi"):
    """A jitted function whose result, twice its argument, is delivered by the route."""
    return jax.jit(lambda x: deliver(x * 2, route, owner.slot))


def read(owner: Readback, x: np.ndarray, copy: bool = False) -> tuple[np.ndarray, Route]:
    """Twice x, by way of the readback, and the route that it took."""
    with owner.claim(x.nbytes) as claim:
        return claim.fetch(program(owner, claim.route)(x), x.shape, copy), claim.route


def values(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n, np.float32)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class Spy:
    """The library, with a record of the buffers it was asked for; ``failing``: it has no memory to give."""

    def __init__(self, failing: bool = False) -> None:
        lib = readback.library()
        assert lib is not None
        self.calls: list[tuple[str, int]] = []

        def reserve(slot: int, n_bytes: int, page_locked: bool) -> int | None:
            self.calls.append(("reserve", n_bytes))
            return None if failing else lib.minfer_readback_reserve(slot, n_bytes, page_locked)

        def release(data: int, page_locked: bool) -> None:
            self.calls.append(("release", data))
            lib.minfer_readback_release(data, page_locked)

        self.minfer_readback_reserve, self.minfer_readback_release = reserve, release


@pytest.fixture
def spy(monkeypatch: Patch) -> Spy:
    spy = Spy()
    monkeypatch.setattr(readback, "library", lambda: spy)
    return spy


@pytest.fixture
def log(monkeypatch: Patch, caplog: Log) -> Log:
    """What is logged, as in a new process."""
    monkeypatch.setattr(readback, "_failures", itertools.count())
    caplog.set_level(logging.WARNING, "minfer_jax")
    return caplog


@needs_library
def test_blocking_copy_is_replaced_by_a_custom_call_without_side_effect():
    lowered = program(Readback("ffi")).lower(values(10))
    assert f"custom_call @{READBACK}" in lowered.as_text()
    assert "has_side_effect" not in lowered.as_text()
    compiled = lowered.compile().as_text()
    assert compiled.count(f'custom_call_target="{READBACK}"') == 1  # XLA has not removed it
    assert "has_side_effect" not in compiled


@needs_library
def test_buffer_is_allocated_on_first_read_and_again_only_for_more(spy: Spy):
    owner = Readback("ffi")
    assert spy.calls == []
    first = address(read(owner, values(10))[0])
    assert spy.calls == [("reserve", 4 * MIB)]
    assert address(read(owner, values(MIB))[0]) == first  # exactly 4 MiB
    assert len(spy.calls) == 1
    grown = address(read(owner, values(MIB + 1))[0])
    assert spy.calls[1:] == [("release", first), ("reserve", 4 * MIB + 4)]  # the old one is freed first
    assert address(read(owner, values(10))[0]) == grown
    assert len(spy.calls) == 3
    del owner
    assert spy.calls[3:] == [("release", grown)]


@needs_library
def test_buffer_of_a_large_first_read_is_as_large(spy: Spy):
    read(Readback("ffi"), values(2 * MIB))
    assert spy.calls[0] == ("reserve", 8 * MIB)


@needs_library
def test_buffer_is_guarded_by_a_lock():
    owner = Readback("ffi")
    others_turn = threading.Event()

    def other() -> None:
        with owner.claim(40):
            others_turn.set()

    with owner.claim(40):
        thread = threading.Thread(target=other)
        thread.start()
        assert not others_turn.wait(0.2)
    assert others_turn.wait(10)
    thread.join()


@needs_library
def test_buffer_gives_each_of_eight_threads_its_own_values():
    owner, x = Readback("ffi"), values(100_000)
    call = program(owner)

    def own(factor: int) -> bool:
        mine = x * np.float32(factor)
        for _ in range(50):
            with owner.claim(mine.nbytes) as claim:
                host = claim.fetch(call(mine), mine.shape, copy=True)
            if not np.array_equal(host, mine * 2):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(own, range(1, 9))) == [True] * 8


@needs_library
def test_failure_takes_the_ordinary_path_and_is_said_once(monkeypatch: Patch, log: Log):
    failing = Spy(failing=True)
    monkeypatch.setattr(readback, "library", lambda: failing)
    owners = [Readback("ffi"), Readback("ffi")]
    for seed, owner in enumerate(owners * 3):
        x = values(1000, seed)
        host, route = read(owner, x)
        assert route == "plain"
        assert np.array_equal(host, x * 2)
    (line,) = log.messages
    assert "no memory" in line and "\n" not in line
    assert len(failing.calls) == 2  # nor is it tried again at each read


@needs_library
def test_failure_to_grow_frees_the_old_buffer_and_takes_the_ordinary_path(log: Log):
    owner = Readback("ffi")
    assert read(owner, values(10))[1] == "ffi"
    with owner.claim(1 << 60) as claim:
        assert claim.route == "plain"
    assert read(owner, values(10))[1] == "plain"
    assert len(log.messages) == 1


@needs_library
def test_failure_without_a_cuda_driver(log: Log, monkeypatch: Patch):
    if jax.default_backend() == "gpu":
        pytest.skip("its driver is here")
    owner = Readback("ffi")
    monkeypatch.setattr(owner, "_page_locked", True)
    assert read(owner, values(10))[1] == "plain"
    assert len(log.messages) == 1


@needs_library
@pytest.mark.parametrize("n", [MIB, MIB - 3])
def test_no_clone_is_made(n: int):
    """A buffer of exactly the result's size is given whole, any other in part; both are views of it."""
    owner, x = Readback("ffi"), values(n).reshape(1, n)
    view, _ = read(owner, x)
    again, _ = read(owner, x + 1)
    assert view.shape == x.shape and view.dtype == np.float32
    assert address(view) == address(again)
    assert not view.flags.writeable and not view.flags.owndata


@needs_library
def test_no_clone_shows_the_next_readback_where_a_copy_does_not():
    owner, x, y = Readback("ffi"), values(1000), values(1000, seed=1)
    kept, view = read(owner, x, copy=True)[0], read(owner, x)[0]
    assert np.array_equal(kept, x * 2) and np.array_equal(view, x * 2)
    read(owner, y)
    assert np.array_equal(kept, x * 2)
    assert np.array_equal(view, y * 2)
    kept[0] = 1  # it is the caller's own


@needs_library
def test_no_clone_outlives_its_buffer(spy: Spy):
    """Memory that a view shows is not freed before the view."""
    owner, x = Readback("ffi"), values(1000)
    view, _ = read(owner, x)
    read(owner, values(2 * MIB))
    del owner
    assert np.array_equal(view, x * 2)
    old = address(view)
    assert ("release", old) not in spy.calls
    del view
    assert ("release", old) in spy.calls


@pytest.mark.parametrize("route", ROUTES)
def test_minfer_no_pinned_readback_is_read_at_every_call(route: Route, monkeypatch: Patch):
    owner, x = Readback(route), values(10)
    for value in ("1", "0", "1", "", "true", "yes", "2", "11", " 1"):
        monkeypatch.setenv("MINFER_NO_PINNED_READBACK", value)
        host, taken = read(owner, x)
        assert taken == ("plain" if value == "1" else route)
        assert np.array_equal(host, x * 2)
    monkeypatch.delenv("MINFER_NO_PINNED_READBACK")
    assert read(owner, x)[1] == route


@needs_library
def test_round_trip_of_more_than_the_first_buffer():
    owner, small, large = Readback("ffi"), values(10), values(1_400_000)  # 5.6 MB
    call = program(owner)
    for x in (small, large, small, large):
        with owner.claim(x.nbytes) as claim:
            assert claim.route == "ffi"
            assert np.array_equal(claim.fetch(call(x), x.shape), x * 2)


@needs_library
def test_cpu_runs_the_same_custom_call_inside_a_program():
    owner, x = Readback("ffi"), np.arange(64, dtype=np.float32).reshape(8, 8)

    @jax.jit
    def step(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = x @ x[::-1]
        return logits.argmax(-1), deliver(logits, "ffi", owner.slot)

    with owner.claim(x.nbytes) as claim:
        best, out = step(x)
        logits = claim.fetch(out, (8, 8))
    assert np.array_equal(logits, x @ x[::-1])  # integers, so exactly
    assert np.array_equal(best, logits.argmax(-1))


@needs_library
@pytest.mark.parametrize("reserved, message", [(0, "holds 0 bytes and the result has 40"), (8, "holds 8 bytes")])
def test_a_program_called_without_a_claim_fails(reserved: int, message: str):
    lib = readback.library()
    assert lib is not None
    owner = Readback("ffi")
    data = lib.minfer_readback_reserve(owner.slot, reserved, False) if reserved else None
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"readback slot {owner.slot} {message}"):
        program(owner)(values(10)).block_until_ready()
    if data is not None:
        lib.minfer_readback_release(data, False)


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_gives_the_same_values(route: Route):
    owner, x = Readback(route), values(1000).reshape(4, 250)
    for copy in (False, True):
        host, taken = read(owner, x, copy)
        assert taken == route
        assert host.dtype == np.float32 and host.flags.writeable == copy
        assert np.array_equal(host, x * 2)


@needs_library
def test_readbacks_have_slots_and_buffers_of_their_own():
    one, other, x = Readback("ffi"), Readback("ffi"), values(10)
    assert one.slot != other.slot
    view = read(one, x)[0]
    read(other, x + 1)
    assert np.array_equal(view, x * 2)
    freed = one.slot
    del one
    assert Readback("ffi").slot == freed  # so that programs of the next process find low numbers again


def test_default_is_the_fastest_that_is_there(monkeypatch: Patch):
    monkeypatch.setattr(readback, "_FASTEST", {jax.default_backend(): ("ffi", "pinned_host", "plain")})
    monkeypatch.setattr(readback, "library", lambda: SimpleNamespace())
    assert Readback()._route == "ffi"
    monkeypatch.setattr(readback, "library", lambda: None)
    assert Readback()._route == "pinned_host"
    monkeypatch.setattr(readback, "_FASTEST", {})
    assert Readback()._route == "plain"


def test_a_route_that_is_not_there_is_refused(monkeypatch: Patch):
    monkeypatch.setattr(readback, "library", lambda: None)
    with pytest.raises(UnsupportedError, match="'ffi' is not available: the native library is not there"):
        Readback("ffi")
    with pytest.raises(UnsupportedError, match="'fast' is not available: choose ffi, pinned_host or plain"):
        Readback("fast")  # pyright: ignore[reportArgumentType]
    device = SimpleNamespace(addressable_memories=lambda: [SimpleNamespace(kind="device")])
    monkeypatch.setattr(jax, "devices", lambda: [device])
    with pytest.raises(UnsupportedError, match="'pinned_host' is not available: .* no such memory .*device"):
        Readback("pinned_host")
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(UnsupportedError, match="'ffi' is not available: there is no custom call for tpu"):
        Readback("ffi")
