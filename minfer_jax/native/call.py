"""How a program calls the native kernels."""

from collections.abc import Sequence
from typing import Any

import jax

from minfer_jax.errors import UnsupportedError
from minfer_jax.native import library


def native_call(
    target: str,
    results: Sequence[jax.ShapeDtypeStruct],
    operands: Sequence[jax.Array],
    aliases: dict[int, int] | None = None,
    **attributes: Any,
) -> list[jax.Array]:
    """The results of a custom call. aliases: operand -> the result that takes its place in memory.

    Under ``jax.vmap`` the calls follow one another. Raises UnsupportedError without a library, and for derivatives.
    """
    if library() is None:
        raise UnsupportedError("implementation 'ffi' needs the native library; install again with a C++17 compiler")
    call = jax.ffi.ffi_call(target, list(results), input_output_aliases=aliases, vmap_method="sequential")

    @jax.custom_jvp
    def run(*operands: jax.Array) -> Sequence[jax.Array]:
        return call(*operands, **attributes)

    @run.defjvp
    def derivative(*_: Any) -> Any:
        raise UnsupportedError("native kernels have no derivatives; load with implementation='dense'")

    return list(run(*operands))
