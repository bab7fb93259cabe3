"""Small arrays that stay on the device."""

import jax
import numpy as np

from minfer_jax.runtime.resident import resident


def test_on_a_cpu_arrays_stay_what_they_are():
    x = np.arange(5, dtype=np.int32)
    assert resident(x) is x


def test_elsewhere_equal_arrays_are_one(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x = np.arange(6, dtype=np.int32)
    kept = resident(x)
    assert isinstance(kept, jax.Array) and kept.dtype == np.int32 and not kept.committed
    assert resident(x[:]) is kept
    x[0] = 7  # of the caller's own
    np.testing.assert_array_equal(kept, np.arange(6))
    for other in (x, np.arange(6).reshape(2, 3).astype(np.int32), np.arange(6, dtype=np.uint32), np.int32(0)):
        ours = resident(other)
        assert ours is not kept and ours.dtype == other.dtype
        np.testing.assert_array_equal(ours, other)
    large = np.zeros(1 << 17, np.int32)
    assert resident(large) is large
