"""Case I01: what importing and installing the package may do on a machine without compiler, GPU or network."""

import os
import subprocess
import sys
import time
import tomllib
from importlib import metadata, resources
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Runs in a fresh interpreter: sockets that leave the machine and child processes are refused, then the package is
# imported and JAX is asked whether it has touched a device.
PROBE = """
import socket, subprocess, sys, time

def refuse(*arguments, **options):
    raise AssertionError(f"import reached out: {arguments}")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
subprocess.Popen.__init__ = refuse
begin = time.process_time()
import minfer_jax
seconds = time.process_time() - begin
import jax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "importing minfer_jax initialised a JAX backend"
forbidden = {"matplotlib", "torch", "pandas"} & set(sys.modules)
assert not forbidden, forbidden
print(seconds)
"""


def run_probe(**environment: str) -> float:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return float(run.stdout)


def test_i01_import_touches_no_device_network_or_process() -> None:
    run_probe()


def test_i01_import_works_without_compiler_or_writable_cache(tmp_path: Path) -> None:
    run_probe(CC="/bin/false", CXX="/bin/false", MINFER_CACHE_DIR="/proc/none", HOME=str(tmp_path / "none"))


def test_i01_import_is_quick() -> None:
    # The best of three, of processor time: the first pays for a cold page cache, and other tests share the machine.
    seconds = min(run_probe() for _ in range(3))
    assert seconds < 3.0


def test_i01_command_starts_quickly_and_offline() -> None:
    begin = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-m", "minfer_jax.cli", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0 and "generate" in run.stdout, run.stderr
    assert time.perf_counter() - begin < 10


def test_i01_the_package_is_whole_and_pure() -> None:
    assert resources.files("minfer_jax").joinpath("py.typed").is_file()
    for package in ("minfer_jax", "pallas_kernels"):  # setuptools leaves out a folder without __init__.py
        folders = {path.parent for path in (ROOT / package).rglob("*.py")}
        assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_i01_installed_dependencies_fit_the_stated_limits() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        installed = metadata.version(requirement.name)
        assert requirement.specifier.contains(installed, prereleases=True), (text, installed)
