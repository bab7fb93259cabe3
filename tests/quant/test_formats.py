"""Repack to planes and dequantise: bit for bit what the gguf library gives, for every packed format."""

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer_jax.gguf import RawTensor
from minfer_jax.quant import PACKED, to_stack, to_tensor, to_vector

LARGEST_FLUSHED = 12 * 2.0**-127  # the largest code of an MXFP4 block times a scale that is not a normal float32


def library_values(part: RawTensor) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return gguf.quants.dequantize(part.data, part.type)


def assert_same_bits(ours: np.ndarray, oracle: np.ndarray) -> None:
    """Equal bits, but for the declared exceptions: NaN payloads, MXFP4 blocks with a subnormal scale."""
    assert ours.shape == oracle.shape
    same = ours.view(np.uint32) == oracle.view(np.uint32)
    same |= np.isnan(ours) & np.isnan(oracle)
    same |= (np.abs(oracle) <= LARGEST_FLUSHED) & (ours == 0)
    assert same.all(), f"{(~same).sum()} of {same.size} differ"


def raw_tensor(name: str, rows: int, blocks: int, seed: int) -> RawTensor:
    """A tensor of arbitrary bytes: every bit pattern of codes and scales, infinities and NaNs included."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks * block_bytes), dtype=np.uint8)
    return RawTensor("w", GGMLQuantizationType[name], (rows, blocks * block), data)


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=20, deadline=None)
@given(rows=st.sampled_from([1, 3]), blocks=st.sampled_from([1, 5]), seed=st.integers(0, 2**32 - 1))
def test_planes_keep_every_bit(name, rows, blocks, seed):
    """Rows of 32-wide formats that 256 does not divide are among them."""
    part = raw_tensor(name, rows, blocks, seed)
    packed = to_tensor(part, "xla", "float32")
    assert packed.format == name
    assert_same_bits(np.asarray(packed.values()), library_values(part))
    dense = to_tensor(part, "dense", "float32")
    assert dense.format == "F32"
    assert_same_bits(np.asarray(dense.values()), library_values(part))


@pytest.mark.parametrize("name", PACKED)
def test_more_blocks_than_a_chunk(name):
    """Conversion runs in chunks of a fixed number of blocks; a tensor longer than one, not a multiple of it."""
    block = GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]
    part = raw_tensor(name, 61, 9216 // block, seed=5)
    assert_same_bits(np.asarray(to_tensor(part, "xla", "float32").values()), library_values(part))
    assert_same_bits(np.asarray(to_tensor(part, "dense", "float32").values()), library_values(part))


@pytest.mark.parametrize("name", PACKED)
def test_packed_size_is_the_files(name):
    """Planes hold the block's information and no more than a byte of scale padding per 16 weights beyond it."""
    part = raw_tensor(name, 4, 8, seed=1)
    packed = to_tensor(part, "xla", "float32")
    assert packed.size == 4 * part.shape[1]
    assert part.data.nbytes <= packed.nbytes <= part.data.nbytes + packed.size // 16


@pytest.mark.parametrize("name", PACKED)
def test_taking_rows(name):
    part = raw_tensor(name, 7, 3, seed=2)
    packed = to_tensor(part, "xla", "float32")
    ids = np.array([[3, 0], [6, 3]])
    assert_same_bits(np.asarray(packed.take(ids)), library_values(part)[ids])
    assert_same_bits(np.asarray(packed.rows(2, 4).values()), library_values(part)[2:6])


def test_a_stack_of_mixed_types_becomes_one_dense_tensor():
    parts = [raw_tensor("Q4_K", 3, 1, 1), raw_tensor("Q6_K", 3, 1, 2), raw_tensor("Q8_0", 3, 8, 3)]
    stack = to_stack(parts, "dense", "float32")
    assert stack.shape == (3, 256) and stack.size == 3 * 3 * 256
    for i, part in enumerate(parts):
        assert_same_bits(np.asarray(stack.values()[i]), library_values(part))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_types(name):
    values = np.random.default_rng(0).normal(size=(5, 24)).astype(np.float32)
    data = gguf.quants.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    part = RawTensor("w", GGMLQuantizationType[name], (5, 24), data)
    oracle = gguf.quants.dequantize(data, part.type)
    assert to_tensor(part, "xla", "float32").format == name
    np.testing.assert_array_equal(np.asarray(to_tensor(part, "xla", "float32").values()).astype(np.float32), oracle)
    np.testing.assert_array_equal(np.asarray(to_tensor(part, "dense", "float32").values()), oracle)
    vector = RawTensor("b", part.type, (24,), data[0])
    np.testing.assert_array_equal(to_vector(vector), oracle[0])


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"])
def test_g06_other_types_of_the_library_are_expanded(name):
    """No kernel of ours: float32, exactly."""
    values = np.zeros((2, 256), np.float32)
    part = raw_tensor(name, 2, 1, seed=4)
    part.data[...] &= 0x3F  # keeps the float16 scales finite
    values = library_values(part)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(np.asarray(to_tensor(part, "dense", "float32").values()), values)
    packed = to_tensor(part, "xla", "float32")
    assert packed.format == "F32"
    np.testing.assert_array_equal(np.asarray(packed.values()), values)


def assert_file_is_exact(path) -> None:
    from minfer_jax.gguf import open_gguf

    matrices = [t for t in open_gguf(path).tensors.values() if len(t.shape) == 2]
    assert matrices
    for part in matrices:
        oracle = library_values(part)
        for implementation in ("xla", "dense"):
            assert_same_bits(np.asarray(to_tensor(part, implementation, "float32").values()), oracle)


def test_g06_every_tensor_of_smollm2(smol135):
    assert_file_is_exact(smol135)


@pytest.mark.models
def test_g06_every_tensor_of_qwen(qwen05):
    assert_file_is_exact(qwen05)


@pytest.mark.models
def test_g06_every_tensor_of_gemma(gemma270):
    assert_file_is_exact(gemma270)
