"""Which implementation a model is loaded for: what may be asked for, what is chosen, and whether it fits the device."""

import logging
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

from minfer_jax.errors import ArgumentError, UnsupportedError
from minfer_jax.gguf import GGUFFile
from minfer_jax.native import library
from minfer_jax.quant import IMPLEMENTATIONS
from pallas_kernels.compat import why_not_available as why_no_gpu_kernels
from pallas_kernels.quantised_matmul import FORMATS

log = logging.getLogger("minfer_jax")

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Numerics:
    """implementation: a name of ``quant.IMPLEMENTATIONS``. dtype: of weights that "dense" expands. exact: whether
    inputs of products stay float32."""

    implementation: str
    dtype: str
    exact: bool


def choose(implementation: str | None, dtype: str | None, precision: str | None) -> Numerics:
    """The arguments of ``load``, checked, with what is fastest here for those that are None.

    Raises ArgumentError naming the argument, UnsupportedError for an implementation that does not run here.
    """
    if implementation is not None and implementation not in list(IMPLEMENTATIONS):
        raise ArgumentError(f"implementation is {implementation!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    if precision not in (None, "default", "exact"):
        raise ArgumentError(f"precision is {precision!r}; choose default or exact")
    if dtype not in (None, *DTYPES):
        raise ArgumentError(f"dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
    exact = precision == "exact"
    if exact and dtype not in (None, "float32"):
        raise ArgumentError(f"dtype {dtype} rounds the weights; precision exact needs float32")
    if exact and implementation == "pallas":
        raise ArgumentError("implementation 'pallas' rounds inputs to 16 bits; precision exact needs dense or xla")
    check_device()
    if implementation is None:
        implementation, short = _fastest(dtype, exact)
        dtype = dtype or short
    if implementation == "pallas" and (reason := why_no_gpu_kernels()) is not None:
        raise UnsupportedError(f"implementation 'pallas' does not run here: {reason}; leave implementation out")
    if implementation == "ffi" and library() is None:
        raise UnsupportedError("implementation 'ffi' needs the native library; install again with a C++17 compiler")
    return Numerics(implementation, dtype or "float32", exact)


def check_room(file: GGUFFile, numerics: Numerics, limit: int | None) -> None:
    """Whether the weights fit the ``limit`` bytes that JAX has on the device (None: not known).

    Raises UnsupportedError that says what would fit.
    """
    needed = _bytes(file, numerics)
    if limit is None or needed <= limit:
        return
    smaller = Numerics("xla", "float32", False)
    fits = "take a smaller file"
    if _bytes(file, smaller) <= limit:
        fits = f"load with implementation='xla' ({_bytes(file, smaller) / 1e9:.1f} GB)"
    what = numerics.implementation + f" {numerics.dtype}" * (numerics.implementation == "dense")
    raise UnsupportedError(
        f"{file.name}: the weights take {needed / 1e9:.1f} GB with {what}, and JAX has {limit / 1e9:.1f} GB on the "
        f"device; {fits}"
    )


def device_limit() -> int | None:
    """Bytes that JAX may take on its default device, where it says so."""
    return (jax.devices()[0].memory_stats() or {}).get("bytes_limit")


def check_device() -> None:
    """JAX has a device, or one line says why not: it fails in many ways when the one asked for is missing."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms or "any"  # pyright: ignore[reportAttributeAccessIssue]
        reason = str(error).split("\n")[0] or "no such device"
        raise UnsupportedError(
            f"JAX finds no device for JAX_PLATFORMS={asked}: {reason}; unset it, or install JAX for that device, such "
            "as pip install 'jax[cuda13]'"
        ) from None


def _fastest(dtype: str | None, exact: bool) -> tuple[str, str | None]:
    """Kernels of ours, unless a dtype asks for weights that are expanded, or they do not run here; and the dtype of
    expanded ones."""
    backend = jax.default_backend()
    if dtype is None and backend == "cpu" and library() is not None:
        return "ffi", None
    if dtype is None and backend == "gpu" and not exact:
        reason = why_no_gpu_kernels()
        if reason is None:
            return "pallas", None
        _say_once(f"no GPU kernels of this package here, weights are expanded to float16: {reason}")
        return "dense", "float16"
    return "dense", None


@cache
def _say_once(line: str) -> None:
    log.warning("%s", line)


def _bytes(file: GGUFFile, numerics: Numerics) -> int:
    """That the weights take, about."""
    packed, n = file.size, file.n_parameters
    if numerics.implementation == "pallas":
        return 2 * n + sum(t.data.nbytes for t in file.tensors.values() if t.type.name in FORMATS)
    return n * jnp.dtype(numerics.dtype).itemsize if numerics.implementation == "dense" else packed
