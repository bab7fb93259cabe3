"""The persistent compilation cache, each case in a process of its own: the setting is global to JAX."""

import os
import subprocess
import sys
from pathlib import Path

PROBE = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
import jax, jax.numpy as jnp
from minfer_jax.runtime.persistent_cache import enable_persistent_cache
enable_persistent_cache()
enable_persistent_cache()
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
jax.jit(lambda x: x * 3 + 1)(jnp.ones(7)).block_until_ready()
print(jax.config.jax_compilation_cache_dir, len(hits))
"""


def run(**environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", PROBE], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    """Even a program that compiles in milliseconds is kept."""
    folder = tmp_path / "compiled"
    assert run(MINFER_CACHE_DIR=str(tmp_path)) == f"{folder} 0"
    assert any(folder.iterdir())
    where, hits = run(MINFER_CACHE_DIR=str(tmp_path)).rsplit(" ", 1)
    assert where == str(folder) and int(hits) >= 1


def test_a_folder_set_for_jax_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert run(MINFER_CACHE_DIR=str(tmp_path / "ours"), JAX_COMPILATION_CACHE_DIR=str(own)).startswith(f"{own} ")
    assert not (tmp_path / "ours").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    lines = run(MINFER_CACHE_DIR=str(blocked)).splitlines()
    assert len(lines) == 2 and lines[1] == "None 0"
    assert lines[0].startswith("compiled programs are not kept:") and str(blocked) in lines[0]
