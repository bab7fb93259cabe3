"""Files that must be refused: cut off, not GGUF, hostile, of types we lack. One line each that helps."""

import base64
import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType

from minfer_jax.errors import ArgumentError, GGUFError, UnsupportedError
from minfer_jax.gguf import open_gguf, readable_types
from tests.gguf.builder import ARCHITECTURE, array, entry, gguf_bytes, limits, nested_array, pair, text

CRAFTED = json.loads((Path(__file__).parents[1] / "data" / "crafted_gguf.json").read_text())["files"]


def refusal(path: str | Path, error: type[Exception] = GGUFError) -> str:
    """Open a bad file under the limits of case G03; return the message, which is one line and names the file."""
    with limits(2, 200), pytest.raises(error) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    assert Path(path).name in message
    return message


def crafted(name: str, tmp_path: Path) -> Path:
    path = tmp_path / f"{name}.gguf"
    content = CRAFTED[name]["b64"]
    if content is None:
        assert name == "nested_array_deep"
        path.write_bytes(gguf_bytes([ARCHITECTURE, pair("a", GGUFValueType.ARRAY, nested_array(2000))]))
    else:
        path.write_bytes(base64.b64decode(content))
    return path


def sparse_copy(source: Path, target: Path, size: int, header: int = 4 << 20) -> Path:
    """Copy the header and make the rest, up to `size`, a hole: nothing is read from it before the refusal."""
    with open(source, "rb") as original, open(target, "wb") as copy:
        copy.write(original.read(min(header, size)))
        copy.truncate(size)
    return target


# What the message must say, for every crafted file.
CRAFTED_MESSAGES = {
    "empty": "is empty",
    "four_bytes": "4 bytes",
    "html": "HTML page",
    "lfs_pointer": "Git LFS pointer",
    "big_endian": "big-endian",
    "version1": "GGUF version 1;",
    "version99": "GGUF version 99;",
    "key_len_huge": "the metadata (1 claimed) ends there",
    "n_kv_2e32": "the metadata (4294967296 claimed)",
    "n_tensors_2e32": "the tensor table (4294967296 claimed)",
    "array_count_huge": "metadata key 'a'",
    "nested_array_deep": "'a' is an array of arrays",
    "bad_value_type": "'k' has the unknown value type 77",
    "align0": "general.alignment is 0",
    "align24": "general.alignment is 24",
    "zero_dim": "'t' has a dimension of 0",
    "ndims9": "'t' has 9 dimensions; 1 to 4",
    "dim_overflow": "'t' claims",
    "unknown_type": "type 250 in 1 tensor",
    "removed_type_q4_0_4_4": "Q4_0_4_4 (removed from GGUF) in 1 tensor",
    "row_not_block_multiple": "rows of 33 elements, not a multiple of the 32 in a Q8_0 block",
    "offset_unaligned": "offset 4, not a multiple of the alignment 32",
    "offset_past_end": "should have",
    "offset_wraps": "is corrupt",
    "data_truncated": "should have",
}


@pytest.mark.parametrize("name", sorted(CRAFTED_MESSAGES))
def test_g01_g02_g03_g06_crafted_file_is_refused(name: str, tmp_path: Path) -> None:
    error = UnsupportedError if "type_q" in name or name == "unknown_type" else GGUFError
    assert CRAFTED_MESSAGES[name] in refusal(crafted(name, tmp_path), error)


def test_every_crafted_file_is_tested() -> None:
    assert set(CRAFTED) == {*CRAFTED_MESSAGES, "invalid_utf8_string"}


def test_g03_invalid_utf8_in_a_value_becomes_replacement_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = open_gguf(crafted("invalid_utf8_string", tmp_path)).metadata
    assert metadata.string("k") == "\ufffd\ufffd"
    assert "invalid_utf8_string.gguf" in caplog.text and "'k'" in caplog.text


@pytest.mark.parametrize("cut", ["half", "last byte"])
def test_g01_cut_off_download(cut: str, smol135: Path, smol135_reader: GGUFReader, tmp_path: Path) -> None:
    expected = max(int(tensor.data_offset) + int(tensor.n_bytes) for tensor in smol135_reader.tensors)
    size = smol135.stat().st_size // 2 if cut == "half" else expected - 1
    message = refusal(sparse_copy(smol135, tmp_path / "cut.gguf", size))
    assert f"has {size} bytes but should have {expected} (" in message


def test_g01_cut_inside_the_header(smol135: Path, tmp_path: Path) -> None:
    message = refusal(sparse_copy(smol135, tmp_path / "cut.gguf", 1 << 20))
    assert f"has {1 << 20} bytes but should have at least " in message


def test_g01_shorter_files_are_refused(small_model: Path) -> None:
    content = small_model.read_bytes()
    reader = GGUFReader(small_model)
    needed = max(int(tensor.data_offset) + int(tensor.n_bytes) for tensor in reader.tensors)
    for size in [*range(64), *range(64, needed, 7), needed - 1]:
        small_model.write_bytes(content[:size])
        with pytest.raises(GGUFError, match=f"{size} bytes"):
            open_gguf(small_model)
    small_model.write_bytes(content[:needed])
    open_gguf(small_model)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (struct.pack("<Q", 30) + b'{"a":{"dtype":"F32","shape":[]}}', "safetensors"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x1f\x8b\x08" + bytes(60), "gzip"),
        (b"lmgg" + bytes(60), "before GGUF"),
        (b'{"error": "not found"}', "JSON"),
        (b"\n<html><body>", "HTML page"),
        (b"<?xml version='1.0'?><Error/>", "HTML page"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07\x08", "not a GGUF file"),
        (b"GGUF\x00\x00\x00\x02" + bytes(16), "big-endian GGUF file (version 2)"),
        (b"GGUF" + bytes(20), "GGUF version 0"),
        (b"GGUF\x03\x00\x00\x00", "at least 16"),
    ],
)
def test_g02_says_what_the_file_is(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert said in refusal(path)


def test_g02_missing_empty_folder_and_special_files(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "absent.gguf")
    assert "no .gguf file in this folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")
    (tmp_path / "file").write_bytes(b"x")
    assert "cannot be read" in refusal(tmp_path / "file" / "model.gguf")
    assert "cannot be read" in refusal(tmp_path / ("x" * 300))
    with pytest.raises(GGUFError, match="cannot be a file name"):
        open_gguf("a\0b")


@pytest.mark.parametrize("path", ["", None, 3, b"model.gguf"])
def test_g02_what_is_not_a_path(path: object) -> None:
    with pytest.raises(ArgumentError, match="path must be"):
        open_gguf(path)  # type: ignore[arg-type]


HUGE = 2**64 - 1
U32 = GGUFValueType.UINT32
ARRAY = GGUFValueType.ARRAY
TWO = bytes(64)

HOSTILE = {
    "key length": (gguf_bytes([struct.pack("<Q", HUGE) + bytes(40)]), "metadata key 0 of 1 would end at byte"),
    "key twice": (gguf_bytes([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' occurs twice"),
    "key not UTF-8": (gguf_bytes([pair(b"k\xff", U32, bytes(4))]), "not UTF-8 text"),
    "string length": (gguf_bytes([pair("k", 8, struct.pack("<Q", HUGE))]), "'k' would end"),
    "string beyond the end": (gguf_bytes([pair("k", 8, struct.pack("<Q", 5000))]), "at least"),
    "string array count": (gguf_bytes([pair("k", 9, array(8, HUGE, b""))]), "'k' ("),
    "string in an array": (gguf_bytes([pair("k", 9, array(8, 2, text("a") + b"\xff" * 8))]), "'k'[1] would end"),
    "last string missing": (gguf_bytes([pair("k", 9, array(8, 9, text("a" * 72)))]), "'k'[4]"),
    "number array count": (gguf_bytes([pair("k", 9, array(U32, 2**62, b""))]), "'k', an array of"),
    "array item type": (gguf_bytes([pair("k", 9, array(99, 0, b""))]), "unknown value type 99"),
    "array of arrays": (gguf_bytes([pair("k", 9, array(ARRAY, 0, b""))]), "array of arrays"),
    "alignment a string": (gguf_bytes([pair("general.alignment", 8, text("32"))]), "alignment is str"),
    "alignment a bool": (gguf_bytes([pair("general.alignment", 7, b"\x01")]), "alignment is True"),
    "alignment 4": (gguf_bytes([pair("general.alignment", U32, b"\x04\0\0\0")]), "alignment is 4"),
    "alignment negative": (gguf_bytes([pair("general.alignment", 5, b"\xff" * 4)]), "alignment is -1"),
    "tensor twice": (gguf_bytes(entries=[entry("t", (8,)), entry("t", (8,), offset=32)], data=TWO), "'t' occurs twice"),
    "tensor name not UTF-8": (gguf_bytes(entries=[entry(b"\xff", (8,))], data=TWO), "not UTF-8 text"),
    "tensor name endless": (gguf_bytes(entries=[struct.pack("<Q", 2**40)], data=TWO), "name of tensor 0 of 1"),
    "no dimensions": (gguf_bytes(entries=[entry("t", ())], data=TWO), "0 dimensions"),
    "2^32-1 dimensions": (
        gguf_bytes(entries=[text("t") + b"\xff" * 4], data=TWO),
        "4294967295 dimensions",
    ),
    "dimensions whose product wraps to 8": (
        gguf_bytes(entries=[entry("t", (2**32 + 1, 2**32 - 1, 2**32, 8))], data=TWO),
        "'t' claims",
    ),
    "overlap": (gguf_bytes(entries=[entry("t", (16,)), entry("u", (8,), offset=32)], data=TWO), "'t' and 'u' overlap"),
    "same place": (gguf_bytes(entries=[entry("t", (8,)), entry("u", (8,))], data=TWO), "overlap"),
    "overlap within another": (
        gguf_bytes(entries=[entry("t", (4,), offset=32), entry("u", (16,))], data=TWO),
        "'u' and 't' overlap",
    ),
    "table cut": (gguf_bytes(entries=[entry("t", (8,))[:-9]]), "at least"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_g03_hostile_header_is_refused(case: str, tmp_path: Path) -> None:
    content, said = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    assert said in refusal(path)


def test_g03_names_in_messages_are_escaped_and_short(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("evil\n\x1b[31m" + "x" * 100_000, (0,))]))
    message = refusal(path)
    assert "\x1b" not in message and "evil\\n" in message


# G06. The types that occur in Q4_1 and Q4_K_M files, and the library's own word for the rest.


def test_g06_lists_types_uses_and_what_is_supported(tmp_path: Path) -> None:
    kinds = [0, 250, 31, 250, GGMLQuantizationType.Q8_K]
    path = tmp_path / "types.gguf"
    path.write_bytes(
        gguf_bytes(entries=[entry(f"t{i}", (256,), kind, 1024 * i) for i, kind in enumerate(kinds)], data=bytes(8192))
    )
    message = refusal(path, UnsupportedError)
    assert "type 250 in 2 tensors, Q4_0_4_4 (removed from GGUF) in 1 tensor, Q8_K in 1 tensor;" in message
    supported = re.search("supported types: (.*)", message)
    assert supported is not None
    assert set(supported[1].split(", ")) >= {"F32", "F16", "BF16", "Q4_1", "Q4_K", "Q5_0", "Q6_K", "Q8_0", "IQ4_XS"}


def test_g06_thousands_of_types_stay_one_line(tmp_path: Path) -> None:
    path = tmp_path / "types.gguf"
    path.write_bytes(gguf_bytes(entries=[entry(f"t{i}", (256,), 1000 + i) for i in range(3000)]))
    assert "2992 more" in refusal(path, UnsupportedError)


def test_g06_readable_types_are_those_of_the_library() -> None:
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    plain = {"F64", "I8", "I16", "I32", "I64"}
    for kind in GGMLQuantizationType:
        block = np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8)
        if kind in readable_types() and kind.name not in plain:
            assert dequantize(block, kind).shape == (1, GGML_QUANT_SIZES[kind][0])
        elif kind.name not in plain:
            with pytest.raises(NotImplementedError):
                dequantize(block, kind)
