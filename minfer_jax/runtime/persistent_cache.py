"""The persistent compilation cache: a program compiled once on a machine is not compiled again in the next process."""

import logging
import tempfile
from functools import cache

import jax

from minfer_jax.env import cache_dir
from minfer_jax.errors import ArgumentError

log = logging.getLogger("minfer_jax")


@cache  # once per process: what cannot be written is said once
def enable_persistent_cache() -> None:
    """Keep compiled programs under the user's cache folder, whatever their compile time.

    A cache folder that the user has set for JAX (``JAX_COMPILATION_CACHE_DIR`` or ``jax.config``) is left as it is.
    A folder that cannot be written is one line in the log, and compiling goes on without a cache.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    try:
        folder = cache_dir() / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ArgumentError) as error:
        log.warning("compiled programs are not kept: the cache folder cannot be written (%s)", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
