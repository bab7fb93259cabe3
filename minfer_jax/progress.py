"""The progress bar of long work: on a terminal, never in a pipe."""

import sys

from tqdm import tqdm


def progress_bar(title: str, total: int | None, unit: str, wanted: bool | None = None) -> tqdm:
    """A bar on stderr. unit: what is counted, "B" for bytes. wanted: None shows it when stderr is a terminal."""
    in_bytes = unit == "B"
    return tqdm(
        desc=title,
        total=total,
        unit=unit if in_bytes else f" {unit}",
        unit_scale=in_bytes,
        disable=sys.stderr is None or (None if wanted is None else not wanted),
    )
