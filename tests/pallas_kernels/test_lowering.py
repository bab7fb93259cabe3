"""The kernels lower to the GPU's dialects on a machine without one. (Assembly itself is only read on a GPU.)"""

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import compat
from pallas_kernels.quantised_matmul import FORMATS, Layout, quantised_matmul

needs_lowering = pytest.mark.skipif(compat.why_not_lowerable() is not None, reason=str(compat.why_not_lowerable()))


def lowered(layout: Layout, batch: int, gate: str | None = None, layers: int | None = None, **operands: bool) -> str:
    def shape(*sides: int, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sides, dtype)

    n, k = layout.rows, layout.columns
    stack = () if layers is None else (layers,)
    shapes = {"norm": shape(*stack, k), "bias": shape(*stack, n), "residual": shape(batch, n)}
    given = {name: shapes[name] for name, wanted in operands.items() if wanted}
    packed = shape(*stack, layout.tiles * (2 if gate else 1), layout.tile_words, dtype=jnp.uint32)
    if layers is not None:
        given["layer"] = shape(dtype=jnp.int32)

    def call(packed: jax.Array, x: jax.Array, given: dict[str, jax.Array]) -> jax.Array:
        return quantised_matmul(layout, packed, x, gate=gate, **given)

    traced = jax.jit(call).trace(packed, shape(batch, k), given)
    assert jax.tree.map(lambda a: a.shape, traced.out_info) == (batch, n)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@needs_lowering
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, batch):
    assert "mosaic_gpu" in lowered(Layout(name, 100, 1792), batch)


@needs_lowering
@pytest.mark.parametrize("columns", [32, 576, 896, 4864, 18944])
def test_columns(columns):
    for batch in (1, 2, 5):
        lowered(Layout("Q5_0", 33, columns), batch)


@needs_lowering
def test_operands():
    layout = Layout("Q4_0", 4864, 896)
    lowered(layout, 1, norm=True, bias=True, residual=True)
    lowered(layout, 8, "silu", layers=24, norm=True)
    lowered(layout, 3, "gelu", residual=True)


@needs_lowering
def test_rows_of_x_go_eight_at_a_time():
    assert lowered(Layout("Q4_0", 64, 896), 16).count("call @") >= 2


def test_arguments():
    layout = Layout("Q4_0", 32, 64)
    packed, x = jnp.zeros((2, layout.tile_words), jnp.uint32), jnp.zeros((1, 64))
    if compat.why_not_lowerable() is not None:
        with pytest.raises(RuntimeError, match="quantised_matmul is not available: jax"):
            quantised_matmul(layout, packed, x)
        return
    for match, arguments in {
        "gate is": {"gate": "relu"},
        "packed is": {"layer": 0},
        "norm is": {"norm": jnp.zeros(32)},
        "bias is": {"bias": jnp.zeros(64)},
        "residual is": {"residual": jnp.zeros((2, 32))},
    }.items():
        with pytest.raises(ValueError, match=match):
            quantised_matmul(layout, packed, x, **arguments)
    with pytest.raises(ValueError, match="x is"):
        quantised_matmul(layout, packed, x[:, :32])


def test_the_reason_is_said():
    """Here there is no GPU, so there must be one."""
    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    assert compat.why_not_available()
