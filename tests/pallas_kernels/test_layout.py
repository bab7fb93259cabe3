"""Packing loses nothing: fields come back bit for bit, and weights are what the gguf library makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minfer_jax.quant import PACKED
from pallas_kernels.quantised_matmul import FORMATS, Fields, Layout, interleave, pack, unpack
from pallas_kernels.quantised_matmul.reference import weights
from tests.pallas_kernels.matrices import raw_matrix, sane_matrix

SMALLEST_SCALE = 12 * 2.0**-127  # weights of MXFP4 blocks with a subnormal scale, which XLA flushes to zero


def same_fields(a: Fields, b: Fields) -> None:
    for name in ("codes", "d", "scales", "dmin", "mins"):
        ours, right = getattr(a, name), getattr(b, name)
        if right is None:
            assert ours is None
            continue
        assert ours.dtype == right.dtype and ours.shape == right.shape
        np.testing.assert_array_equal(
            np.ascontiguousarray(ours).view(np.uint8), np.ascontiguousarray(right).view(np.uint8), name
        )


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_is_minfers(name):
    ours, right = FORMATS[name], PACKED[name]
    for field in ("bits", "block", "group", "offset", "codebook", "min_sign"):
        assert getattr(ours, field) == getattr(right, field), field


@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("name", FORMATS)
def test_fields_come_back(name, rows, blocks):
    """Rows that do not fill a tile and, with blocks of 32, columns that do not fill a pair or a chunk among them."""
    layout, fields, right = raw_matrix(name, rows, blocks, seed=rows + blocks)
    packed = pack(layout, fields)
    assert packed.shape == (layout.tiles, layout.tile_words) and packed.dtype == np.uint32
    same_fields(unpack(layout, packed), fields)
    ours = np.asarray(weights(layout, packed))
    same = ours.view(np.uint32) == right.view(np.uint32)
    same |= np.isnan(ours) & np.isnan(right)
    same |= (ours == 0) & (np.abs(right) <= SMALLEST_SCALE)
    assert same.all()


@pytest.mark.parametrize("name", FORMATS)
def test_jax_arrays_and_stacks(name):
    """Packing is the same traced as on numpy arrays, and axes in front stack matrices."""
    parts = [raw_matrix(name, 20, 2, seed=i) for i in range(3)]
    layout = parts[0][0]
    stacked = jax.tree.map(lambda *arrays: np.stack(arrays), *(fields for _, fields, _ in parts))
    right = np.stack([pack(layout, fields) for _, fields, _ in parts])
    np.testing.assert_array_equal(pack(layout, stacked), right)
    on_device = jax.tree.map(jnp.asarray, stacked)
    np.testing.assert_array_equal(jax.jit(lambda f: pack(layout, f))(on_device), right)
    same_fields(jax.jit(lambda p: unpack(layout, p))(right), stacked)


@pytest.mark.parametrize("name", FORMATS)
def test_size(name):
    """Half a bit of a weight at most above the file, and copies of whole chunks are multiples of 16 bytes."""
    layout, fields, _ = raw_matrix(name, 64, 8, seed=0)
    file_bytes = PACKED[name].block_bytes * 64 * 8
    assert file_bytes <= pack(layout, fields).nbytes <= file_bytes + 64 * layout.columns / 16
    for shape in (layout, Layout(name, 64, layout.columns + layout.fmt.block)):
        assert shape.chunk_bytes % 16 == shape.last_chunk_bytes % 16 == 0


def test_interleaving():
    layout, gate = sane_matrix("Q4_0", 40, 4, seed=1)
    _, up = sane_matrix("Q4_0", 40, 4, seed=2)
    a, b = pack(layout, gate), pack(layout, up)
    both = interleave(a, b)
    np.testing.assert_array_equal(both[0::2], a)
    np.testing.assert_array_equal(both[1::2], b)
    np.testing.assert_array_equal(interleave(jnp.stack([a, a]), jnp.stack([b, b]))[1], both)


def test_columns_that_do_not_fit():
    with pytest.raises(ValueError, match="300 columns are not a multiple of 256"):
        Layout("Q4_K", 16, 300)
