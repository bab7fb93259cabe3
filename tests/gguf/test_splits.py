"""Case G05: any part, or the folder, opens the whole model; parts that do not belong together are refused by name."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from minfer_jax.errors import GGUFError
from minfer_jax.gguf import open_gguf
from tests.gguf.builder import ARCHITECTURE, entry, gguf_bytes, pair, write_small_model

U16, I32 = GGUFValueType.UINT16, GGUFValueType.INT32


def part(number: int, count: int, total: int | None, tensors: list[str], more: tuple[bytes, ...] = ()) -> bytes:
    """Return a part by hand; `number` counts from 0, every tensor is 8 floats of its index."""
    pairs = [ARCHITECTURE] if number == 0 else []
    pairs += [
        pair("split.no", U16, number.to_bytes(2, "little")),
        pair("split.count", U16, count.to_bytes(2, "little")),
    ]
    pairs += [pair("split.tensors.count", I32, total.to_bytes(4, "little"))] if total is not None else []
    entries = [entry(name, (8,), offset=32 * i) for i, name in enumerate(tensors)]
    data = np.repeat(np.arange(len(tensors), dtype=np.float32), 8).tobytes()
    return gguf_bytes([*pairs, *more], entries, data)


def name_of(number: int, count: int = 3, prefix: str = "model") -> str:
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A folder with a small model in three parts, written by the `gguf` library."""
    write_small_model(tmp_path / "model.gguf", split_max_tensors=2)
    assert sorted(file.name for file in tmp_path.iterdir()) == [name_of(1), name_of(2), name_of(3)]
    return tmp_path


def refusal(path: Path, *named: str) -> None:
    """Open what must be refused, with every given text in the one-line message."""
    with pytest.raises(GGUFError) as caught:
        open_gguf(path)
    message = str(caught.value)
    assert "\n" not in message
    for name in named:
        assert name in message


@pytest.fixture(scope="module")
def smol135_in_three(smol135: Path, smol135_reader: GGUFReader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2 in three parts, written by the `gguf` library."""
    folder = tmp_path_factory.mktemp("split")
    writer = GGUFWriter(folder / "smol.gguf", "llama", split_max_tensors=100)
    for key, field in smol135_reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=item)
    for tensor in smol135_reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


@pytest.mark.parametrize("given", ["folder", 1, 2, 3])
def test_g05_smol135_in_three_parts(given: int | str, smol135_in_three: Path, smol135_reader: GGUFReader) -> None:
    file = open_gguf(smol135_in_three if given == "folder" else smol135_in_three / name_of(int(given), 3, "smol"))
    assert [path.name for path in file.paths] == [name_of(n, 3, "smol") for n in (1, 2, 3)]
    assert file.size == sum(path.stat().st_size for path in smol135_in_three.iterdir())
    assert file.metadata["split.tensors.count"] == len(file.tensors) == 272
    assert file.metadata.strings("tokenizer.ggml.tokens") == smol135_reader.fields["tokenizer.ggml.tokens"].contents()
    assert [tensor.name for tensor in smol135_reader.tensors] == list(file.tensors)
    for expected in smol135_reader.tensors:
        found = file.tensors[expected.name]
        assert (found.type, found.data.shape) == (expected.tensor_type, expected.data.view(np.uint8).shape)
        assert found.data.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize("given", ["", name_of(1), name_of(2), name_of(3)])
def test_g05_any_part_or_the_folder(given: str, split: Path) -> None:
    file = open_gguf(split / given)
    assert file.name == name_of(1)
    assert list(file.tensors) == [f"blk.{i}.weight" for i in range(6)]
    for path in file.paths:
        for expected in GGUFReader(path).tensors:
            assert file.tensors[expected.name].data.tobytes() == expected.data.tobytes()
    assert file.metadata.string("general.architecture") == "llama"
    joined = b"".join((split / name_of(n)).read_bytes() for n in (1, 2, 3))
    assert file.sha256() == hashlib.sha256(joined).hexdigest()


def test_g05_first_part_without_tensors(tmp_path: Path) -> None:
    (tmp_path / name_of(1, 2)).write_bytes(part(0, 2, 1, []))
    (tmp_path / name_of(2, 2)).write_bytes(part(1, 2, 1, ["a"]))
    assert list(open_gguf(tmp_path / name_of(2, 2)).tensors) == ["a"]


def test_g05_missing_part(split: Path) -> None:
    (split / name_of(3)).unlink()
    for given in ("", name_of(1), name_of(2)):
        refusal(split / given, name_of(3) + " is missing", name_of(1))
    refusal(split / name_of(3), "no such file")
    (split / name_of(2)).unlink()
    refusal(split, f"{name_of(2)}, {name_of(3)} are missing")


def test_g05_first_part_missing(split: Path) -> None:
    (split / name_of(1)).unlink()
    refusal(split / name_of(3), name_of(1) + " is missing")


def test_g05_part_with_another_prefix(split: Path) -> None:
    (split / name_of(2)).rename(split / name_of(2, prefix="other"))
    refusal(split / name_of(1), name_of(2) + " is missing")
    refusal(split / name_of(2, prefix="other"), name_of(1, prefix="other"))
    refusal(split, "2 models", "model-*-of-00003.gguf (2 of 3 parts)", "other-*-of-00003.gguf (1 of 3 parts)")


def test_g05_part_renamed_out_of_the_split(split: Path) -> None:
    (split / name_of(2)).rename(split / "model.gguf")
    refusal(split / "model.gguf", "part 2 of 3", "00002-of-00003.gguf")


def test_g05_parts_swapped(split: Path) -> None:
    (split / name_of(2)).rename(split / "aside")
    (split / name_of(3)).rename(split / name_of(2))
    (split / "aside").rename(split / name_of(3))
    refusal(split / name_of(1), name_of(2), "part 2 of 3", "part 3 of 3")


def test_g05_another_split_count_in_one_part(split: Path) -> None:
    third = split / name_of(3)
    content = third.read_bytes()
    place = content.index(b"split.count") + len(b"split.count") + 4
    third.write_bytes(content[:place] + b"\x04" + content[place + 1 :])
    assert GGUFReader(third).fields["split.count"].contents() == 4
    for given in ("", name_of(1), name_of(3)):
        refusal(split / given, name_of(3), "part 3 of 4")


def test_g05_part_of_another_split(split: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    write_small_model(foreign / "model.gguf", n_tensors=5, prefix="other", split_max_tensors=2)
    shutil.copy(foreign / name_of(2), split / name_of(2))
    refusal(split / name_of(1), name_of(2), "split.tensors.count")


def test_g05_whole_model_in_place_of_a_part(split: Path, tmp_path: Path) -> None:
    write_small_model(split / name_of(2))
    refusal(split / name_of(1), name_of(2), "names no split")


def test_g05_same_tensor_in_two_parts(tmp_path: Path) -> None:
    (tmp_path / name_of(1, 2)).write_bytes(part(0, 2, 4, ["a", "b"]))
    (tmp_path / name_of(2, 2)).write_bytes(part(1, 2, 4, ["b", "c"]))
    refusal(tmp_path, name_of(1, 2), name_of(2, 2), "'b'")


@pytest.mark.parametrize("total", [3, 5, None])
def test_g05_announced_number_of_tensors(total: int | None, tmp_path: Path) -> None:
    (tmp_path / name_of(1, 2)).write_bytes(part(0, 2, total, ["a", "b"]))
    (tmp_path / name_of(2, 2)).write_bytes(part(1, 2, total, ["c", "d"]))
    refusal(tmp_path, name_of(1, 2), "split.tensors.count")


def test_g05_parts_of_two_architectures(tmp_path: Path) -> None:
    other = pair("general.architecture", GGUFValueType.STRING, b"\x05" + bytes(7) + b"qwen2")
    (tmp_path / name_of(1, 2)).write_bytes(part(0, 2, 2, ["a"]))
    (tmp_path / name_of(2, 2)).write_bytes(part(1, 2, 2, ["b"], (other,)))
    refusal(tmp_path, name_of(2, 2), "'general.architecture'", name_of(1, 2))


def test_g05_later_part_cut_off(split: Path) -> None:
    third = split / name_of(3)
    content = third.read_bytes()
    third.write_bytes(content[:-200])
    refusal(split / name_of(1), name_of(3), f"has {len(content) - 200} bytes but should have")


@pytest.mark.parametrize("number", [0, 4])
def test_g05_number_outside_the_count(number: int, split: Path) -> None:
    shutil.copy(split / name_of(1), split / name_of(number))
    refusal(split / name_of(number), f"part {number} of 3")


def test_g05_99999_parts(tmp_path: Path) -> None:
    (tmp_path / name_of(1, 99999)).write_bytes(part(0, 65535, 1, ["a"]))
    refusal(tmp_path, name_of(2, 99999), "and 99988 more are missing")


def test_g05_single_file_with_the_name_of_a_part(small_model: Path, tmp_path: Path) -> None:
    single = tmp_path / "x-00001-of-00001.gguf"
    small_model.rename(single)
    for given in (single, tmp_path):
        file = open_gguf(given)
        assert file.paths == (single,) and len(file.tensors) == 6
    single.write_bytes(part(0, 1, 2, ["a", "b"]))
    assert list(open_gguf(single).tensors) == ["a", "b"]
    single.write_bytes(part(0, 1, 3, ["a", "b"]))
    refusal(single, "announces 3 tensors")
    single.write_bytes(part(0, 3, 2, ["a", "b"]))
    refusal(single, "part 1 of 3")


def test_g05_merged_file_keeps_stale_keys(tmp_path: Path) -> None:
    # llama.cpp's merge sets split.count to 0 and leaves the rest.
    merged = tmp_path / "merged.gguf"
    merged.write_bytes(part(0, 0, 7, ["a", "b"]))
    assert list(open_gguf(merged).tensors) == ["a", "b"]


def test_g05_parts_may_differ_in_alignment(tmp_path: Path) -> None:
    alignment = pair("general.alignment", GGUFValueType.UINT32, (8).to_bytes(4, "little"))
    (tmp_path / name_of(1, 2)).write_bytes(part(0, 2, 2, ["a"]))
    pairs = [pair("split.no", U16, b"\1\0"), pair("split.count", U16, b"\2\0"), alignment]
    content = gguf_bytes(pairs, [entry("b", (8,))], np.ones(8, np.float32).tobytes(), alignment=8)
    (tmp_path / name_of(2, 2)).write_bytes(content)
    assert open_gguf(tmp_path).tensors["b"].data.view(np.float32).tolist() == [1.0] * 8


def test_folder_with_one_model_among_other_files(small_model: Path) -> None:
    (small_model.parent / "README.md").write_text("text")
    (small_model.parent / "folder.gguf").mkdir()
    assert open_gguf(str(small_model.parent)).paths == (small_model,)


def test_folder_with_several_models_lists_them(split: Path) -> None:
    write_small_model(split / "a.gguf")
    write_small_model(split / "B.GGUF")
    refusal(split, "3 models", "a.gguf", "B.GGUF", "model-*-of-00003.gguf (3 of 3 parts)")
