"""The layout that native kernels read: where each code lies in a word, each row in a tile, each layer in a stack."""

import jax
import numpy as np
import pytest

from minfer_jax.gguf import RawTensor
from minfer_jax.quant import PACKED, PLAIN, QuantTensor, to_stack, to_tensor
from tests.quant.test_formats import assert_same_bits, library_values, raw_tensor

ROWS = (1, 5, 16, 17, 33)


def blocks_of(name: str) -> tuple[int, int]:
    """K = 32 and 288, or 256 and 512."""
    return (1, 9) if PACKED[name].block == 32 else (1, 2)


def field(words: np.ndarray, width: int, i: int) -> np.ndarray:
    """Code i of each row of words [N, C], by the rule in words: byte b, field j holds code 4 * j + b of the word."""
    word, within = divmod(i, 32 // width)
    j, b = divmod(within, 4)
    return words[:, word] >> np.uint32(8 * b + width * j) & np.uint32((1 << width) - 1)


@pytest.mark.parametrize("name", PACKED)
def test_where_a_code_lies_in_a_word(name):
    fmt = PACKED[name]
    part = raw_tensor(name, 3, 2, seed=3)
    planes = {k: np.asarray(p) for k, p in to_tensor(part, "xla", "float32").planes.items()}
    codes = np.asarray(fmt.split(part.data.reshape(3, 2, -1)).codes).view(np.uint8)
    low = {2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 8: 8}[fmt.bits]
    assert planes["codes"].dtype == np.uint32 and planes["codes"].shape == (3, codes.shape[1] * low // 32)
    assert ("codes_high" in planes) == (fmt.bits > low)
    for i in range(codes.shape[1]):
        found = field(planes["codes"], low, i)
        if fmt.bits > low:
            found = found | field(planes["codes_high"], fmt.bits - low, i) << np.uint32(low)
        np.testing.assert_array_equal(found, codes[:, i])


def plain_tensor(name: str, rows: int, columns: int) -> RawTensor:
    values = np.random.default_rng(rows).normal(size=(rows, columns)).astype(PLAIN[name])
    return RawTensor("w", getattr(type(PACKED["Q4_0"].type), name), (rows, columns), values.view(np.uint8))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", [*PACKED, *PLAIN])
def test_tiles_hold_rows_in_lanes_and_pad_with_zeros(name, rows):
    for n in blocks_of(name) if name in PACKED else (24,):
        part = raw_tensor(name, rows, n, seed=rows) if name in PACKED else plain_tensor(name, rows, n)
        flat, tiled = to_tensor(part, "xla", "float32"), to_tensor(part, "ffi", "float32")
        assert (flat.format, flat.shape, flat.size) == (tiled.format, tiled.shape, tiled.size)
        assert flat.planes.keys() == tiled.planes.keys()
        for key, plane in flat.planes.items():
            found = np.asarray(tiled.planes[key])
            assert found.dtype == plane.dtype and found.shape == (-(-rows // 16), plane.shape[1], 16)
            bits = found.view(np.uint8).reshape(*found.shape, -1)
            expected = np.asarray(plane).view(np.uint8).reshape(*plane.shape, -1)
            for row in range(found.shape[0] * 16):
                lane = bits[row // 16, :, row % 16]
                np.testing.assert_array_equal(lane, expected[row] if row < rows else 0)


@pytest.mark.parametrize("rows", [5, 33])
@pytest.mark.parametrize("name", PACKED)
def test_tiles_keep_every_bit(name, rows):
    part = raw_tensor(name, rows, blocks_of(name)[rows == 33], seed=rows)
    tiled, values = to_tensor(part, "ffi", "float32"), library_values(part)
    ids = np.array([[rows - 1, 0], [rows // 2, rows - 1]])
    found, taken = jax.jit(lambda w: (w.values(), w.take(ids)))(tiled)
    assert_same_bits(np.asarray(found), values)
    assert_same_bits(np.asarray(taken), values[ids])


@pytest.mark.parametrize("name", PACKED)
def test_more_blocks_than_a_chunk(name):
    """Conversion runs in chunks of a fixed number of blocks; a tensor longer than one, not a multiple of it."""
    part = raw_tensor(name, 61, 9216 // PACKED[name].block, seed=5)
    assert_same_bits(np.asarray(to_tensor(part, "ffi", "float32").values()), library_values(part))


@pytest.mark.parametrize("implementation", ["xla", "ffi"])
def test_rows_are_cut_in_steps(implementation):
    part = raw_tensor("Q6_K", 39, 2, seed=4)
    w = to_tensor(part, implementation, "float32")
    assert w.row_step == (16 if implementation == "ffi" else 1)
    cut = jax.jit(lambda w, start: w.rows(start, 16))(w, 16)
    assert cut.shape == (16, 512)
    assert_same_bits(np.asarray(cut.values()), library_values(part)[16:32])


def test_rows_reach_into_the_padding_of_tiles():
    part = raw_tensor("Q4_K", 39, 1, seed=4)
    last = np.asarray(to_tensor(part, "ffi", "float32").rows(32, 16).values())
    assert_same_bits(last[:7], library_values(part)[32:])
    np.testing.assert_array_equal(last[7:], 0)


def stack_of(implementation: str) -> tuple[QuantTensor, np.ndarray]:
    parts = [raw_tensor("Q5_K", 21, 2, seed) for seed in range(3)]
    return to_stack(parts, implementation, "float32"), np.stack([library_values(p) for p in parts])


@pytest.mark.parametrize("implementation", ["dense", "xla", "ffi"])
def test_layers_of_a_stack(implementation):
    stack, values = stack_of(implementation)
    assert stack.size == 3 * 21 * 512
    assert_same_bits(np.asarray(stack.values()), values)
    for i in range(3):
        layer = jax.jit(QuantTensor.layer)(stack, i)
        assert layer.shape == (21, 512) and layer.size == 21 * 512
        assert_same_bits(np.asarray(layer.values()), values[i])
        assert_same_bits(np.asarray(layer.take(np.array([20, 3]))), values[i][[20, 3]])
        assert_same_bits(np.asarray(layer.rows(0, 16).values()), values[i][:16])


@pytest.mark.parametrize("implementation", ["dense", "xla", "ffi"])
def test_planes_are_taken_over_without_a_copy(implementation):
    """The CPU backend copies what does not start on a 64-byte boundary."""
    stack, _ = stack_of(implementation)
    assert all(plane.unsafe_buffer_pointer() % 64 == 0 for plane in stack.planes.values())
