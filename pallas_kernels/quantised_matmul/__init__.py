"""Products of few rows of float32 with a quantised matrix that stays packed: the decode step's matrix products."""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compat import multiprocessors, why_not_lowerable
from pallas_kernels.quantised_matmul.formats import FORMATS, Format
from pallas_kernels.quantised_matmul.kernel import kernel
from pallas_kernels.quantised_matmul.layout import Fields, Layout, interleave, pack, unpack
from pallas_kernels.quantised_matmul.plan import COLUMNS, WARPS, Plan

__all__ = ["FORMATS", "Fields", "Format", "Layout", "interleave", "pack", "quantised_matmul", "unpack"]

Array = Any


def quantised_matmul(
    layout: Layout,
    packed: Array,
    x: Array,
    *,
    layer: Array | None = None,
    norm: Array | None = None,
    eps: float = 1e-6,
    gate: str | None = None,
    bias: Array | None = None,
    residual: Array | None = None,
) -> jax.Array:
    """``x @ w.T`` on a Hopper GPU, with what stands around it in a transformer.

    layout: of w, N rows and K columns. packed: [tiles, words] uint32, or [L, tiles, words] with ``layer``, an int32
    scalar in 0 .. L - 1 that may be traced. x: [M, K] float32, magnitudes below 2**100; a row that is not finite gives
    NaN. More than 8 rows are taken 8 at a time, and weights read as often.
    norm: [K], the weight of an RMSNorm of x with ``eps``. gate: "silu" or "gelu" (tanh form): packed is then
    :func:`~pallas_kernels.quantised_matmul.layout.interleave` of gate and up, each of that layout, and the result
    is activation(x @ gate.T) * (x @ up.T). bias: [N] and residual: [M, N] are added, in this order. With ``layer``
    norm and bias are stacks as well, [L, K] and [L, N].

    Returns [M, N] float32. x is rounded to 16-bit integers by blocks of 32 columns; all else is exact or float32. The
    bits of a row depend on that row of x (and of residual) alone, whatever M is; but with a norm and no gate above
    4,096 columns XLA norms the rows, in an order of its own.

    Raises RuntimeError where the kernels cannot be lowered, ValueError for shapes that do not fit each other.
    """
    if (reason := why_not_lowerable()) is not None:
        raise RuntimeError(f"quantised_matmul is not available: {reason}")
    _check(layout, packed, x, layer, norm, gate, bias, residual)
    if norm is not None and gate is None and layout.chunks > WARPS:  # longer rows: only the gated kernel norms them
        x, norm = _normed(x, norm if layer is None else norm[layer], eps), None
    plans: dict[int, Plan] = {}

    def plan(batch: int) -> Plan:
        if batch not in plans:
            plans[batch] = Plan(
                layout,
                batch,
                gate,
                norm is not None,
                bias is not None,
                residual is not None,
                layer is not None,
                float(eps),
                multiprocessors(),
            )
        return plans[batch]

    most = min(COLUMNS, x.shape[0])
    while most > 1 and plan(most).stages < plan(most).depth:  # the rows of x do not fit in shared memory together
        most = -(-most // 2)
    out = []
    for start in range(0, x.shape[0], most):
        rows = slice(start, min(start + most, x.shape[0]))
        part = None if residual is None else residual[rows]
        given = [jnp.asarray(operand, jnp.float32) for operand in (norm, bias, part) if operand is not None]
        if layer is not None:
            given.insert(0, jnp.asarray(layer, jnp.int32).reshape(1))
        own = plan(rows.stop - rows.start)
        y = kernel(own)(packed, x[rows], *given)
        if own.slices > 1:
            y = _finish(own, y, bias if layer is None or bias is None else bias[layer], part)
        out.append(y)
    return out[0] if len(out) == 1 else jnp.concatenate(out)


def _finish(plan: Plan, parts: jax.Array, bias: Array | None, residual: Array | None) -> jax.Array:
    """The kernel's epilogue, where the kernel gives the sums of slices [slices, unit tiles, M, N]."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    y = _activate(plan.gate, total[0]) * total[1] if plan.gate else total[0]
    y = y if bias is None else y + bias
    return y if residual is None else y + residual


def _normed(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def _activate(name: str, a: jax.Array) -> jax.Array:
    return a * jax.nn.sigmoid(a if name == "silu" else 1.5957691216057308 * (a + 0.044715 * a**3))


def _check(layout: Layout, packed: Any, x: Any, layer: Any, norm: Any, gate: Any, bias: Any, residual: Any) -> None:
    n, k, m = layout.rows, layout.columns, x.shape[0] if x.ndim == 2 else 0
    tiles = layout.tiles * (2 if gate else 1)
    if gate not in (None, "silu", "gelu"):
        raise ValueError(f'gate is "silu", "gelu" or None, not {gate!r}')
    if packed.ndim != (2 if layer is None else 3) or packed.shape[-2:] != (tiles, layout.tile_words):
        raise ValueError(
            f"packed is {packed.shape}; {layout} takes [{tiles}, {layout.tile_words}], in front [L] with layer"
        )
    if m == 0 or x.shape[1] != k:
        raise ValueError(f"x is {x.shape}; {layout} takes [M, {k}] with M >= 1")
    lead = packed.shape[:-2]
    for name, given, shape in (
        ("norm", norm, (*lead, k)),
        ("bias", bias, (*lead, n)),
        ("residual", residual, (m, n)),
    ):
        if given is not None and given.shape != shape:
            raise ValueError(f"{name} is {given.shape}, not {shape}")
