"""The progress bar of long work: on a terminal, never in a pipe."""

from tqdm import tqdm


def progress_bar(wanted: bool | None, total: int | None, unit: str) -> tqdm:
    """A bar on stderr. wanted: True or False; None shows it when stderr is a terminal."""
    return tqdm(total=total, unit=f" {unit}", desc="scoring", disable=None if wanted is None else not wanted)
