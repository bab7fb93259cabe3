"""The native library: custom calls for XLA in C++, there when the package was installed with a compiler at hand."""

import ctypes
import logging
import re
import struct
import sysconfig
import threading
from functools import cache
from pathlib import Path

import jax

log = logging.getLogger("minfer_jax")

READBACK = "minfer_readback"
"""Custom call (x: float32, slot: int64 attribute) -> int32 scalar: copies x into the host buffer of the slot."""

MATMUL = "minfer_matmul"
"""Custom call of quant/native_matmul.py."""

ATTENTION = "minfer_attention"
"""Custom call of models/native_attention.py."""

RMS_NORM = "minfer_rms_norm"
ADD_LOGITS = "minfer_add_logits"
"""Custom calls of models/native_rows.py."""

_TARGETS = (  # custom call, symbol of its handler, platform
    (READBACK, "minfer_readback_cpu", "cpu"),
    (READBACK, "minfer_readback_cuda", "CUDA"),
    (MATMUL, "minfer_matmul", "cpu"),
    (ATTENTION, "minfer_attention", "cpu"),
    (RMS_NORM, "minfer_rms_norm", "cpu"),
    (ADD_LOGITS, "minfer_add_logits", "cpu"),
)

_PATH = Path(__file__).with_name(f"libminfer{sysconfig.get_config_var('EXT_SUFFIX')}")
_WITHOUT = "going on without the native library: %s"
_lock = threading.Lock()


def library() -> ctypes.CDLL | None:
    """The library, with its custom calls known to XLA; None, said once per process, when there is none that fits."""
    with _lock:
        return _load()


@cache
def _load() -> ctypes.CDLL | None:
    try:
        if not _is_whole(_PATH):  # to load it would end the process
            raise OSError(f"{_PATH.name} is cut off")
        lib = ctypes.CDLL(str(_PATH))
        built, known = tuple((ctypes.c_int * 2).in_dll(lib, "minfer_ffi_api_version")), _jaxlib_api_version()
        handlers = [(target, getattr(lib, symbol), platform) for target, symbol, platform in _TARGETS]
    except (OSError, ValueError, AttributeError) as error:  # no library, or another version of ours
        why = f"{error}; install again" if _PATH.exists() else "not built; install again with a C++17 compiler"
        log.warning(_WITHOUT, why)
        return None
    if built[:1] != known[:1] or built > known:
        # XLA would refuse the handlers as well, but only when a backend starts, and that backend as a whole.
        log.warning(_WITHOUT, f"built for XLA's FFI {_dotted(built)}, jaxlib has {_dotted(known)}; install again")
        return None
    for target, handler, platform in handlers:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
    lib.minfer_readback_reserve.argtypes = (ctypes.c_int64, ctypes.c_size_t, ctypes.c_bool)
    lib.minfer_readback_reserve.restype = ctypes.c_void_p
    lib.minfer_readback_release.argtypes = (ctypes.c_void_p, ctypes.c_bool)
    lib.minfer_readback_release.restype = None
    lib.minfer_kernels.restype = ctypes.c_char_p
    return lib


def _is_whole(path: Path) -> bool:
    """Whether a library in the ELF format reaches to its end, where the table of its sections stands."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:4] != b"\x7fELF":
        return True
    if len(header) < 64:
        return False
    (table,), (entry, count) = struct.unpack_from("=Q", header, 40), struct.unpack_from("=HH", header, 58)
    return table + entry * count <= path.stat().st_size


def instruction_set() -> str:
    """The instruction set of the CPU kernels: "avx512", "avxvnni", "avx2" or "portable"; "" without a library."""
    lib = library()
    return lib.minfer_kernels().decode() if lib else ""


def _jaxlib_api_version() -> tuple[int, ...]:
    header = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    return tuple(int(number) for number in re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", header))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
