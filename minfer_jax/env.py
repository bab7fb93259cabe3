"""Every environment switch of the package is read here, when it is asked for."""

import os
from pathlib import Path

from minfer_jax.errors import ArgumentError


def cache_dir() -> Path:
    """Folder for what the package keeps: MINFER_CACHE_DIR, else `minfer-jax` in the user's cache folder.

    Raises ArgumentError when there is no home folder to put it in.
    """
    try:
        if own := os.environ.get("MINFER_CACHE_DIR"):
            return Path(own).expanduser()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG rules ask that a relative value be ignored.
        return (base if base.is_absolute() else Path.home() / ".cache") / "minfer-jax"
    except RuntimeError:
        raise ArgumentError("no home folder for the cache: set MINFER_CACHE_DIR to a folder that exists") from None


def pinned_readback() -> bool:
    """Whether logits may come back through the page-locked buffer; MINFER_NO_PINNED_READBACK=1 says no."""
    return not _switch("MINFER_NO_PINNED_READBACK")


def promote_prefill() -> bool:
    """Whether a prefill shape is compiled exactly at its third run; MINFER_NO_PREFILL_CAPTURE=1 says no.

    MINFER_CAPTURE_PREFILL=1 asks for what is the default and changes nothing.
    """
    return not _switch("MINFER_NO_PREFILL_CAPTURE")


def graph_trace() -> bool:
    """Whether every program call writes a line to stderr: MINFER_GRAPH_TRACE=1."""
    return _switch("MINFER_GRAPH_TRACE")


def _switch(name: str) -> bool:
    return os.environ.get(name) == "1"
