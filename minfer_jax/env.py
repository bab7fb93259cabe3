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
