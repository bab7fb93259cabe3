"""Every environment switch of the package is read here, when it is asked for."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder for what the package keeps: MINFER_CACHE_DIR, else `minfer-jax` in the user's cache folder."""
    if own := os.environ.get("MINFER_CACHE_DIR"):
        return Path(own).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG rules ask that a relative value be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "minfer-jax"
