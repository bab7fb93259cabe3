"""Sound files: every value and every byte as the `gguf` library reads them."""

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFValueType

from minfer_jax.gguf import GGUFFile, open_gguf
from tests.gguf.builder import ARCHITECTURE, array, entry, gguf_bytes, pair, text, write_small_model


def assert_same_values(file: GGUFFile, reader: GGUFReader) -> None:
    """Compare all metadata of a file with the library's reading of it."""
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, field in fields.items():
        found, expected = file.metadata[key], field.contents()
        if isinstance(found, np.ndarray):
            assert not found.flags.writeable
            np.testing.assert_array_equal(found, np.asarray(expected, found.dtype))
        else:
            assert type(found) is type(expected)
            assert found == expected, key


def assert_same_tensors(file: GGUFFile, reader: GGUFReader) -> None:
    """Compare names, order, types, shapes and bytes of all tensors with the library's reading of them."""
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for expected in reader.tensors:
        found = file.tensors[expected.name]
        assert found.name == expected.name
        assert found.type == expected.tensor_type
        assert found.shape == tuple(int(n) for n in reversed(expected.shape))
        block, block_bytes = GGML_QUANT_SIZES[found.type]
        assert found.data.shape == (*found.shape[:-1], found.shape[-1] // block * block_bytes)
        assert found.data.dtype == np.uint8 and not found.data.flags.writeable
        assert found.data.tobytes() == expected.data.tobytes()


def test_small_file_as_the_library_reads_it(small_model: Path) -> None:
    file, reader = open_gguf(small_model), GGUFReader(small_model)
    assert_same_values(file, reader)
    assert_same_tensors(file, reader)
    assert file.paths == (small_model,)
    assert file.size == small_model.stat().st_size
    assert (file.version, file.name) == (3, "small.gguf")
    assert file.metadata.source == "small.gguf"
    assert file.sha256() == hashlib.sha256(small_model.read_bytes()).hexdigest()


def test_smol135_as_the_library_reads_it(smol135: Path, smol135_reader: GGUFReader) -> None:
    file = open_gguf(smol135)
    assert_same_values(file, smol135_reader)
    assert_same_tensors(file, smol135_reader)
    assert len(file.tensors) == 272


@pytest.mark.models
@pytest.mark.parametrize("model", ["qwen05", "gemma270"])
def test_larger_models_as_the_library_reads_them(model: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    file, reader = open_gguf(path), GGUFReader(path)
    assert_same_values(file, reader)
    assert_same_tensors(file, reader)


@pytest.mark.models
def test_header_of_a_262144_entry_vocabulary_in_half_a_second(gemma270: Path) -> None:
    open_gguf(gemma270)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        file = open_gguf(gemma270)
        seconds.append(time.perf_counter() - start)
    assert len(file.metadata.strings("tokenizer.ggml.tokens")) == 262144
    assert min(seconds) < 0.5


def test_every_value_type(tmp_path: Path) -> None:
    scalars = {
        "u8": (GGUFValueType.UINT8, np.uint8(255)),
        "i8": (GGUFValueType.INT8, np.int8(-128)),
        "u16": (GGUFValueType.UINT16, np.uint16(65535)),
        "i16": (GGUFValueType.INT16, np.int16(-32768)),
        "u32": (GGUFValueType.UINT32, np.uint32(2**32 - 1)),
        "i32": (GGUFValueType.INT32, np.int32(-(2**31))),
        "u64": (GGUFValueType.UINT64, np.uint64(2**64 - 1)),
        "i64": (GGUFValueType.INT64, np.int64(-(2**63))),
        "f32": (GGUFValueType.FLOAT32, np.float32(0.1)),
        "f64": (GGUFValueType.FLOAT64, np.float64(0.1)),
    }
    pairs = [pair(key, kind, value.tobytes()) for key, (kind, value) in scalars.items()]
    pairs += [pair("many " + key, 9, array(kind, 3, value.tobytes() * 3)) for key, (kind, value) in scalars.items()]
    pairs += [pair("yes", GGUFValueType.BOOL, b"\x01"), pair("no", GGUFValueType.BOOL, b"\x00")]
    pairs += [pair("flags", 9, array(GGUFValueType.BOOL, 3, b"\x01\x00\x01"))]
    pairs += [pair("words", 9, array(GGUFValueType.STRING, 3, text("") + text("a\0b") + text("été")))]
    pairs += [pair("none", 9, array(GGUFValueType.FLOAT32, 0, b""))]
    path = tmp_path / "types.gguf"
    path.write_bytes(gguf_bytes(pairs))
    metadata = open_gguf(path).metadata
    for key, (_, value) in scalars.items():
        assert metadata[key] == value.item() and type(metadata[key]) is type(value.item())
        assert metadata["many " + key].dtype == value.dtype
        assert metadata["many " + key].tolist() == [value.item()] * 3
    assert metadata["yes"] is True and metadata["no"] is False
    assert metadata["flags"].dtype == np.bool_ and metadata["flags"].tolist() == [True, False, True]
    assert metadata["words"] == ["", "a\0b", "été"]
    assert metadata["none"].shape == (0,)


def test_g02_version_2_has_the_same_layout(small_model: Path, tmp_path: Path) -> None:
    content = bytearray(small_model.read_bytes())
    content[4:8] = (2).to_bytes(4, "little")
    old = tmp_path / "version2.gguf"
    old.write_bytes(content)
    file = open_gguf(old)
    assert file.version == 2
    assert_same_values(file, GGUFReader(small_model))
    assert_same_tensors(file, GGUFReader(small_model))


@pytest.mark.parametrize("alignment", [8, 16, 64, 4096])
def test_g03_other_alignments_load(alignment: int, tmp_path: Path) -> None:
    dims = [(64, 3), (5,), (7, 1, 2)]
    sizes = [4 * int(np.prod(shape)) for shape in dims]
    offsets, stop = [], 0
    for size in sizes:
        offsets.append(stop)
        stop += -(-size // alignment) * alignment
    data = np.random.default_rng(0).bytes(stop)
    pairs = [ARCHITECTURE, pair("general.alignment", GGUFValueType.UINT32, alignment.to_bytes(4, "little"))]
    entries = [
        entry(f"t{i}", shape, offset=offset) for i, (shape, offset) in enumerate(zip(dims, offsets, strict=True))
    ]
    path = tmp_path / "aligned.gguf"
    path.write_bytes(gguf_bytes(pairs, entries, data, alignment=alignment))
    file = open_gguf(path)
    assert_same_tensors(file, GGUFReader(path))
    for index, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        assert file.tensors[f"t{index}"].data.tobytes() == data[offset : offset + size]


def test_vocabulary_only_file_has_no_tensors(tmp_path: Path) -> None:
    path = write_small_model(tmp_path / "vocabulary.gguf", n_tensors=0)
    file = open_gguf(path)
    assert file.tensors == {}
    assert file.metadata.strings("tokenizer.ggml.tokens")[4:] == ["été", "\u2581x"]


def test_nan_in_the_metadata_equals_itself(tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    path.write_bytes(gguf_bytes([pair("k", GGUFValueType.FLOAT32, np.float32("nan").tobytes())]))
    assert np.isnan(open_gguf(path).metadata["k"])


def test_missing_padding_at_the_end_is_no_truncation(tmp_path: Path) -> None:
    path = tmp_path / "unpadded.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("t", (5,))], data=np.arange(5, dtype=np.float32).tobytes()))
    assert open_gguf(path).tensors["t"].data.view(np.float32).tolist() == [0, 1, 2, 3, 4]


def test_views_outlive_the_file_object(small_model: Path) -> None:
    data = open_gguf(small_model).tensors["blk.0.weight"].data
    small_model.unlink()
    assert np.isfinite(data.view(np.float32)).all()
