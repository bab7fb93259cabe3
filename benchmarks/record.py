"""What every benchmark writes beside its numbers: device, versions, date and command, as one JSON file."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minfer_jax import __version__
from minfer_jax.profiling.device import device_name

RESULTS = Path(__file__).parent / "results"


def write_record(name: str, results: Any, partial: bool = False) -> Path:
    """Write ``results/<name>.json``; name says the benchmark and the device, such as "load_cpu".

    partial: not all that the benchmark measures, which goes to ``<name>_partial.json`` instead; git ignores it.
    """
    record = {
        "device": device_name(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {"minfer-jax": __version__}
        | {package: version(package) for package in ("jax", "jaxlib", "numpy", "gguf")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *map(_portable, sys.argv[1:])]),
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}{'_partial' if partial else ''}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _portable(argument: str) -> str:
    """An argument without the folders of this machine."""
    return Path(argument).name if argument.startswith("/") else argument
