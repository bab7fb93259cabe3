"""Products of many rows with what follows them: definitions against float64, kernels against the same on a GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import compat, dense_matmul
from pallas_kernels.dense_matmul import gated, product, reference
from pallas_kernels.shapes import MODELS

needs_lowering = pytest.mark.skipif(compat.why_not_lowerable() is not None, reason=str(compat.why_not_lowerable()))
VERSIONS = [pytest.param(dense_matmul, marks=pytest.mark.gpu, id="kernel"), pytest.param(reference, id="definition")]
FACTOR = 64.0


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float16)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(128, [128], 64), (300, [384, 64, 64], 576), (1, [64], 896), (3000, [1024, 128, 128], 128), (2000, [1088], 128)],
)
def test_matmul(version, rows, columns, depth, residual):
    x = normal(rows, depth, seed=0) / np.float16(FACTOR)
    stacks = [normal(2, n, depth, seed=seed) for seed, n in enumerate(columns)]
    added = np.random.default_rng(9).normal(size=(rows, sum(columns))).astype(np.float32) if residual else None
    call = jax.jit(partial(version.matmul, factor=FACTOR))
    y = call(x, stacks, jnp.int32(1), residual=added)
    assert y.dtype == jnp.float32 and y.shape == (rows, sum(columns))
    wanted = FACTOR * x.astype(np.float64) @ np.concatenate([w[1] for w in stacks]).astype(np.float64).T
    np.testing.assert_allclose(y, wanted if added is None else wanted + added, rtol=1e-5, atol=2e-5 * depth**0.5)
    np.testing.assert_array_equal(call(x, [w[1] for w in stacks], None, residual=added), y)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [128, 896])
def test_all_tiles_give_the_same_bits(monkeypatch, columns):
    x, w, up = normal(700, 896, seed=0), normal(columns, 896, seed=1), normal(columns, 896, seed=2)
    added = np.random.default_rng(9).normal(size=(700, columns)).astype(np.float32)

    def results(module, call) -> list[np.ndarray]:
        found = []
        for tile in module._TILES:
            monkeypatch.setattr(module, "choose", lambda *_, tile=tile: tile)
            jax.clear_caches()
            found.append(np.asarray(call()))
        return found

    wanted = np.asarray(reference.matmul(x, [w], residual=added))
    for module, call in (
        (product, lambda: dense_matmul.matmul(x, [w])),
        (product, lambda: dense_matmul.matmul(x, [w], residual=added)),
        (gated, lambda: dense_matmul.gated_matmul(x, w, up, activation="silu")),
    ):
        first, *others = results(module, call)
        for other in others:
            np.testing.assert_array_equal(other, first)
    np.testing.assert_allclose(
        results(product, lambda: dense_matmul.matmul(x, [w], residual=added))[0], wanted, atol=2e-3
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(128, 64, 64), (300, 384, 576), (1, 128, 896), (900, 2048, 64)])
def test_gated(version, activation, rows, columns, depth):
    x = normal(rows, depth, seed=0) / np.float16(FACTOR)
    gate, up = (normal(3, columns, depth, seed=seed) * np.float16(depth**-0.5) for seed in (1, 2))
    call = jax.jit(partial(version.gated_matmul, activation=activation, factor=FACTOR))
    h = call(x, gate, up, jnp.int32(1))
    assert h.dtype == jnp.float16 and h.shape == (rows, columns)
    g, u = (FACTOR * x.astype(np.float64) @ w[1].astype(np.float64).T for w in (gate, up))
    inner = g if activation == "silu" else np.sqrt(8 / np.pi) * (g + 0.044715 * g**3)
    np.testing.assert_allclose(FACTOR * np.asarray(h, np.float64), g / (1 + np.exp(-inner)) * u, rtol=6e-4, atol=3e-5)
    np.testing.assert_array_equal(call(x, gate[1], up[1], None), h)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(256, 128, 64), (300, 1408, 576), (1, 512, 896)])
def test_log_sum_exp(version, rows, columns, depth):
    x, w = normal(rows, depth, seed=0) / np.float16(FACTOR), normal(columns, depth, seed=1) * np.float16(0.2)
    w[-1] = w[3]  # equal logits, in another block where there is one
    x[0] = w[3] / 16
    total, best = jax.jit(partial(version.log_sum_exp, factor=FACTOR))(x, w)
    z = FACTOR * x.astype(np.float64) @ w.astype(np.float64).T
    peak = z.max(1)
    # Tensor cores cut sums towards zero: for row 0, whose products have one sign, that adds up.
    np.testing.assert_allclose(total, peak + np.log(np.exp(z - peak[:, None]).sum(1)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(best, z.argmax(1))
    assert best[0] == 3 and best.dtype == jnp.int32


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_hidden(version, bad):
    x, w = normal(256, 64, seed=0), normal(256, 64, seed=1)
    x[5, 7] = bad
    total, _ = version.log_sum_exp(x, w)
    h = version.gated_matmul(x, w, w, activation="silu")
    y = version.matmul(x, [w])
    assert (np.isfinite(np.asarray(total)) == (np.arange(256) != 5)).all()
    assert (np.isfinite(np.asarray(y)).all(1) == (np.arange(256) != 5)).all()
    assert (np.isfinite(np.asarray(h)).all(1) == (np.arange(256) != 5)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen2.5-7b"])
def test_shapes_of_real_models(name):
    """Against cuBLAS and XLA on some thousand rows: many tiles for each block of threads."""
    model = MODELS[name]
    x = jnp.asarray(normal(2048, model.width, seed=0))
    gate, up = (jnp.asarray(normal(2, model.ffn, model.width, seed=s)) * np.float16(0.02) for s in (1, 2))
    ours = dense_matmul.gated_matmul(x, gate, up, 1, activation="silu").astype(jnp.float32)
    wanted = reference.gated_matmul(x, gate, up, 1, activation="silu").astype(jnp.float32)
    assert float(jnp.abs(ours - wanted).max()) < 2e-3 * float(jnp.abs(wanted).max())
    w = gate.reshape(-1, model.width)[: model.ffn]
    (ours, best), (wanted, argmax) = (v.log_sum_exp(x, w) for v in (dense_matmul, reference))
    np.testing.assert_allclose(ours, wanted, atol=1e-4)
    assert float((best == argmax).mean()) > 0.99  # logits may be as near to each other as their rounding


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "smollm2-135m"])
def test_bits_depend_on_the_row_alone(name):
    """Whatever tiles the number of rows brings with it."""
    model = MODELS[name]
    x = jnp.asarray(normal(4096, model.width, seed=0))
    q, k = (jnp.asarray(normal(heads * model.head, model.width, seed=heads)) for heads in (model.heads, model.kv_heads))
    gate, head = (jnp.asarray(normal(n, model.width, seed=n)) * np.float16(0.02) for n in (model.ffn, 12800))
    down = jnp.asarray(normal(model.width, model.ffn, seed=3)) * np.float16(0.02)
    for call in (
        lambda x: dense_matmul.matmul(jnp.tile(x, model.ffn // model.width + 1)[:, : model.ffn], [down]),
        lambda x: dense_matmul.matmul(x, [q, k, k]),
        lambda x: dense_matmul.matmul(x, [gate]),
        lambda x: dense_matmul.gated_matmul(x, gate, gate, activation="silu"),
        lambda x: dense_matmul.log_sum_exp(x, head)[0],
    ):
        call = jax.jit(call)
        whole = np.asarray(call(x))
        for rows in (1, 16, 17, 48, 300, 512, 1100, 2048):
            np.testing.assert_array_equal(call(x[:rows] + 0), whole[:rows])
            np.testing.assert_array_equal(call(x[-rows:] + 0), whole[-rows:])


@needs_lowering
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("op", [product, gated])
def test_all_tiles_are_lowered(monkeypatch, op, x64):
    half = jnp.float16
    x, w = jax.ShapeDtypeStruct((512, 3584), half), jax.ShapeDtypeStruct((2, 1152, 3584), half)
    residual, index = jax.ShapeDtypeStruct((512, 1152), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    for tile in op._TILES:
        monkeypatch.setattr(op, "choose", lambda *_, tile=tile: tile)
        jax.clear_caches()
        with jax.enable_x64(x64):
            if op is gated:
                traced = jax.jit(partial(dense_matmul.gated_matmul, activation="silu")).trace(x, w, w, index)
            else:
                traced = jax.jit(dense_matmul.matmul).trace(x, [w], index, residual=residual)
            assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


@needs_lowering
def test_log_sum_exp_is_lowered_in_64_bits():
    x, w = (jax.ShapeDtypeStruct((n, 896), jnp.float16) for n in (512, 1280))
    with jax.enable_x64(True):
        assert (
            "mosaic_gpu" in jax.jit(dense_matmul.log_sum_exp).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
        )


@needs_lowering
@pytest.mark.parametrize("name", MODELS)
def test_shapes_of_real_models_are_lowered(name):
    model, half = MODELS[name], jnp.float16
    x = jax.ShapeDtypeStruct((512, model.width), half)
    stack = jax.ShapeDtypeStruct((model.layers, model.ffn, model.width), half)
    head = jax.ShapeDtypeStruct((model.vocab, model.width), half)
    gated = jax.jit(partial(dense_matmul.gated_matmul, activation="gelu"))
    sizes = model.heads * model.head, model.kv_heads * model.head
    q, k = (jax.ShapeDtypeStruct((model.layers, n, model.width), half) for n in sizes)
    residual = jax.ShapeDtypeStruct((512, model.width), jnp.float32)
    down = jax.ShapeDtypeStruct((model.layers, model.width, model.ffn), half)
    wide, index = jax.ShapeDtypeStruct((512, model.ffn), half), jax.ShapeDtypeStruct((), jnp.int32)
    for traced in (
        jax.jit(dense_matmul.matmul).trace(x, [q, k, k], index),
        jax.jit(dense_matmul.matmul).trace(wide, [down], index, residual=residual),
        gated.trace(x, stack, stack, index),
        jax.jit(dense_matmul.log_sum_exp).trace(x, head),
    ):
        assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_what_fits():
    assert dense_matmul.fits(192, 64) and not dense_matmul.fits(96, 64) and not dense_matmul.fits(128, 96)
    assert dense_matmul.fits(128, 64, 128) and not dense_matmul.fits(192, 64, 128)


def test_arguments():
    x, w = normal(128, 64, seed=0), normal(128, 64, seed=1)
    if compat.why_not_lowerable() is not None:
        with pytest.raises(RuntimeError, match="dense_matmul is not available: jax"):
            dense_matmul.log_sum_exp(x, w)
        return
    with pytest.raises(ValueError, match="they are float16"):
        dense_matmul.log_sum_exp(x.astype(np.float32), w)
    with pytest.raises(ValueError, match=r"x takes \[N, 64\], in front \[L\] with layer"):
        dense_matmul.gated_matmul(x, w, w, 0, activation="silu")
    with pytest.raises(ValueError, match="not whole tiles"):
        dense_matmul.log_sum_exp(x, w[:100])
    with pytest.raises(ValueError, match=r"residual is float32\[1, 128\]; give float32\[128, 128\]"):
        dense_matmul.matmul(x, [w], residual=np.zeros((1, 128), np.float32))
