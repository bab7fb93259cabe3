"""2,000 damaged files: each opens, with every byte of every tensor readable, or ends in the package's own error."""

from collections import Counter
from pathlib import Path

from minfer_jax.errors import MinferError
from minfer_jax.gguf import open_gguf
from tests.gguf.builder import gguf_bytes, limits, write_small_model
from tests.gguf.fuzz import mutated_files


def test_2000_damaged_files_open_or_are_refused(tmp_path: Path) -> None:
    sources = {
        "small": write_small_model(tmp_path / "small.gguf").read_bytes(),
        "vocabulary": write_small_model(tmp_path / "vocabulary.gguf", n_tensors=0).read_bytes(),
        "many tensors": write_small_model(tmp_path / "many.gguf", n_tensors=40).read_bytes(),
        "empty": gguf_bytes(),
    }
    write_small_model(tmp_path / "split.gguf", split_max_tensors=3)
    sources["part"] = (tmp_path / "split-00001-of-00002.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    ends: Counter[str] = Counter()
    for label, content in mutated_files(sources, 2000):
        path.write_bytes(content)
        try:
            with limits(seconds=2, megabytes=500):
                file = open_gguf(path)
                for tensor in file.tensors.values():
                    tensor.data.sum()
            ends["opened"] += 1
        except MinferError as error:
            assert "\n" not in str(error) and path.name in str(error), label
            ends[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; {label}") from error
    # The damage must reach every kind of end, or it tests nothing.
    assert ends["opened"] >= 100 and ends["GGUFError"] >= 1000 and ends["UnsupportedError"] >= 10, ends
