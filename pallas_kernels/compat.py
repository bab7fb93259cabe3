"""Every name of JAX that depends on its version: Pallas for Mosaic GPU, its inline code, and what the device is.

Pallas calls its GPU interface unstable, so nothing else in this package imports it. The names are untyped here on
purpose: type checkers see another version than the one that runs.
"""

from functools import cache
from importlib import import_module
from typing import Any

import jax

OLDEST = (0, 11)
"""The oldest jax whose Mosaic GPU lowering these kernels were run on."""

HOPPER_MULTIPROCESSORS = 132


def why_not_available() -> str | None:
    """Why the kernels cannot run on the default device, or None if they can."""
    if (reason := why_not_lowerable()) is not None:
        return reason
    if jax.default_backend() != "gpu":
        return f"the default backend is {jax.default_backend()}, not a GPU"
    if (capability := cuda_capability()) != (9, 0):
        said = ".".join(map(str, capability)) if capability else "none of CUDA"
        return f"{jax.devices()[0].device_kind} has compute capability {said}; the kernels are for Hopper (9.0)"
    return None


def cuda_capability() -> tuple[int, ...] | None:
    """Compute capability of the default device, such as (9, 0); None where it is no NVIDIA GPU."""
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version.lower():
        return None
    return tuple(int(part) for part in str(device.compute_capability).split("."))


def why_not_lowerable() -> str | None:
    """Why the kernels cannot even be lowered here (no GPU is needed for that), or None if they can."""
    if jax.__version_info__[:2] < OLDEST:
        return f"jax {jax.__version__} is older than {OLDEST[0]}.{OLDEST[1]}"
    return None


def multiprocessors() -> int:
    """Multiprocessors of the default device; without a GPU those of the H100 and H200."""
    if jax.default_backend() != "gpu":
        return HOPPER_MULTIPROCESSORS
    return int(getattr(jax.devices()[0], "core_count", HOPPER_MULTIPROCESSORS))


@cache
def mosaic(name: str = "") -> Any:
    """A module of Mosaic GPU by name: "" (its Pallas), "pallas" (what devices share), "utils", or a dialect ("arith",
    "llvm", "scf", "gpu"), or "ir"."""
    if name == "":
        return import_module("jax.experimental.pallas.mosaic_gpu")
    if name == "pallas":
        return import_module("jax.experimental.pallas")
    if name == "utils":
        return import_module("jax.experimental.mosaic.gpu.utils")
    return import_module("jaxlib.mlir.ir" if name == "ir" else f"jaxlib.mlir.dialects.{name}")


def lane_kernel(program: Any, out: jax.ShapeDtypeStruct, *, ctas: int, warpgroups: int, shared_bytes: int) -> Any:
    """A kernel whose body is per-lane code: ``program(*input refs, output ref, shared memory ref)`` as MLIR values.

    ctas: thread blocks; warpgroups: of 128 threads, in each; shared_bytes: one piece of shared memory, a multiple of 4.
    """
    plgpu = mosaic()

    def body(*refs: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),) * len(refs))
        def lanes(_: Any, *refs: Any) -> None:
            program(*refs)

        lanes(*refs)

    body.__name__ = getattr(program, "__name__", "lanes")
    return plgpu.kernel(
        body,
        out_type=out,
        grid=(ctas,),
        grid_names=("cta",),
        num_threads=warpgroups,
        thread_name="warpgroup",
        scratch_types=[plgpu.SMEM((shared_bytes // 4,), "int32")],
    )
