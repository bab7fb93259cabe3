"""Requantising: weights as the `gguf` library converts them, everything else byte for byte as it was."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.quants import dequantize, quantize

import minfer_jax
from minfer_jax.errors import ArgumentError, GGUFError, MinferError, NumericsError, UnsupportedError
from minfer_jax.gguf import open_gguf
from minfer_jax.gguf.requantize import requantize, writable_types
from minfer_jax.load import load
from minfer_jax.scoring import score
from tests.gguf.builder import ARCHITECTURE, array, entry, gguf_bytes, pair, text, write_small_model
from tests.gguf.test_open import assert_same_tensors, assert_same_values
from tests.tiny import CASES

PLAIN = ("F32", "F16", "BF16")


def assert_converted(source: Path, target: Path, kind: str) -> None:
    """Read both with the library and compare every tensor."""
    before, after = GGUFReader(source), GGUFReader(target)
    names = [tensor.name for tensor in before.tensors]
    assert [tensor.name for tensor in after.tensors] == names
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert old.shape.tolist() == new.shape.tolist()
        wanted = GGMLQuantizationType[kind]
        if old.name == head and kind not in (*PLAIN, "Q8_0"):
            wanted = GGMLQuantizationType.Q8_0
        if len(old.shape) == 1 or old.tensor_type == wanted:
            assert new.tensor_type == old.tensor_type
            np.testing.assert_array_equal(new.data, old.data, err_msg=old.name)
            continue
        assert new.tensor_type == wanted, old.name
        expected = quantize(dequantize(old.data, old.tensor_type), wanted)
        np.testing.assert_array_equal(new.data, expected, err_msg=old.name)


def test_the_types_that_can_be_written() -> None:
    assert {*PLAIN, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} <= set(writable_types())
    assert not {"Q4_K", "Q6_K", "I8"} & set(writable_types())


@pytest.mark.parametrize("kind", [*PLAIN, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.types or name in ("llama", "mistral")])
def test_every_tensor_as_the_library_converts_it(tiny_gguf, tmp_path: Path, case: str, kind: str) -> None:
    written = requantize(tiny_gguf(case), tmp_path / "out.gguf", kind.lower())
    assert_converted(tiny_gguf(case), tmp_path / "out.gguf", kind)
    assert_same_tensors(written, GGUFReader(tmp_path / "out.gguf"))
    assert_same_values(written, GGUFReader(tmp_path / "out.gguf"))
    before = open_gguf(tiny_gguf(case))
    assert {key: before.pair_bytes(key) for key in before.pairs if key != "general.quantization_version"} == {
        key: written.pair_bytes(key)
        for key in written.pairs
        if key not in ("general.file_type", "general.quantization_version")
    }


def test_smollm2_loads_again_and_scores_as_before(smol135: Path, smol_model, tmp_path: Path) -> None:
    requantize(smol135, tmp_path / "q8.gguf", "Q8_0")
    assert_converted(smol135, tmp_path / "q8.gguf", "Q8_0")
    model = load(tmp_path / "q8.gguf")
    assert model.provenance["quantisation"] == {"Q8_0": 211, "F32": 61}
    pairs = [("The capital of France is", " Paris"), ("The capital of France is", " Rome")]
    for old, new in zip(score(smol_model, pairs), score(model, pairs), strict=True):
        assert new.tokens == old.tokens and new.logprob == pytest.approx(old.logprob, abs=0.2)


def test_metadata_keeps_its_bytes(tmp_path: Path) -> None:
    # Widths, empty arrays, bytes that are no text: nothing that a reader and a writer could change between them.
    pairs = [
        ARCHITECTURE,
        pair("a.u8", GGUFValueType.UINT8, b"\x07"),
        pair("a.i64", GGUFValueType.INT64, struct.pack("<q", -5)),
        pair("a.f64", GGUFValueType.FLOAT64, struct.pack("<d", 0.1)),
        pair("a.empty", GGUFValueType.ARRAY, array(GGUFValueType.STRING, 0, b"")),
        pair("a.bools", GGUFValueType.ARRAY, array(GGUFValueType.BOOL, 2, b"\x01\x00")),
        pair("a.bytes", GGUFValueType.STRING, text(b"caf\xe9")),
        pair("general.alignment", GGUFValueType.UINT32, struct.pack("<I", 64)),
        pair("general.file_type", GGUFValueType.UINT32, struct.pack("<I", 1)),
    ]
    weights = np.linspace(-1, 1, 3 * 64, dtype=np.float32)
    entries = [entry("a.weight", (64, 2)), entry("b.weight", (32, 2), offset=512)]
    source = tmp_path / "in.gguf"
    source.write_bytes(gguf_bytes(pairs, entries, weights.tobytes(), version=2, alignment=64))
    written = requantize(source, tmp_path / "out.gguf", "Q4_0")
    before = open_gguf(source)
    assert [written.pair_bytes(key) for key in list(before.pairs)[:-1]] == pairs[:-1]
    made = [written.metadata[f"general.{key}"] for key in ("file_type", "quantization_version")]
    assert (written.version, made) == (3, [2, 2])
    assert_converted(source, tmp_path / "out.gguf", "Q4_0")


def test_parts_become_one_file(tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    write_small_model(tmp_path / "split" / "model.gguf", split_max_tensors=2)
    write_small_model(tmp_path / "whole.gguf")
    requantize(next((tmp_path / "split").iterdir()), tmp_path / "a.gguf", "F16")
    requantize(tmp_path / "whole.gguf", tmp_path / "b.gguf", "F16")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_rows_of_no_whole_blocks_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = np.arange(48 * 2 + 64 * 2, dtype=np.float32)
    entries = [entry("a.weight", (48, 2)), entry("b.weight", (64, 2), offset=384)]
    (tmp_path / "in.gguf").write_bytes(gguf_bytes(entries=entries, data=weights.tobytes()))
    written = requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0")
    assert written.type_counts() == {"F32": 1, "Q8_0": 1}
    assert "in.gguf: 1 matrix stays as in the source, such as a.weight" in caplog.text
    np.testing.assert_array_equal(written.tensors["a.weight"].data.view(np.float32).ravel(), weights[:96])


def test_weights_without_room_in_the_type(tmp_path: Path) -> None:
    for value, kind in ((1e6, "F16"), (np.nan, "Q4_0"), (np.inf, "Q8_0")):
        weights = np.full(64, value, np.float32)
        (tmp_path / "in.gguf").write_bytes(gguf_bytes(entries=[entry("a.weight", (32, 2))], data=weights.tobytes()))
        with pytest.raises(NumericsError, match=r"in.gguf: tensor 'a.weight' holds .*, for which \w+ has no room"):
            requantize(tmp_path / "in.gguf", tmp_path / "out.gguf", kind)
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_bad_arguments(tiny_gguf, tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    source.write_bytes(tiny_gguf("llama").read_bytes())
    (tmp_path / "link.gguf").symlink_to(source)
    before = source.read_bytes()
    for target in (source, tmp_path / "link.gguf", tmp_path / "." / "in.gguf"):
        with pytest.raises(ArgumentError, match="is a file that is read"):
            requantize(source, target, "Q4_0")
    for target, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "x", "no folder"), ("", "path is ''")):
        with pytest.raises(ArgumentError, match=words):
            requantize(source, target, "Q4_0")
    for kind in ("Q4_K", "Q4", "", None, 2):
        with pytest.raises(UnsupportedError, match="types that can be written: F32, F16"):
            requantize(source, tmp_path / "out.gguf", kind)  # type: ignore[arg-type]
    with pytest.raises(GGUFError, match="nowhere.gguf"):
        requantize(tmp_path / "nowhere.gguf", tmp_path / "out.gguf", "Q4_0")
    assert source.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "link.gguf"]


def test_a_failure_leaves_the_old_file(tiny_gguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "out.gguf"
    target.write_bytes(b"old")
    monkeypatch.setattr("minfer_jax.files.os.fsync", full)
    with pytest.raises(MinferError, match=r"out.gguf: cannot be written: No space left on device"):
        requantize(tiny_gguf("llama"), target, "Q4_0")
    assert target.read_bytes() == b"old" and [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_it_is_public_and_takes_what_load_takes(tmp_path: Path) -> None:
    assert minfer_jax.requantize is requantize
    with pytest.raises(ArgumentError, match="no-such-model.*smollm2-135m"):
        requantize("no-such-model", tmp_path / "out.gguf", "Q8_0")
    with pytest.raises(ArgumentError, match="model is 7"):
        requantize(7, tmp_path / "out.gguf", "Q8_0")  # pyright: ignore[reportArgumentType]
