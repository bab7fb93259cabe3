"""Timing of variants in turns, so that what else the machine does falls on all of them alike."""

import time
from collections.abc import Callable, Mapping
from statistics import median

Run = Callable[[], object]


def interleaved(variants: Mapping[str, Run], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each run of each variant, after one run that is not counted; a run must wait for its results."""
    for run in variants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repetitions):
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def medians(seconds: Mapping[str, list[float]], scale: float = 1e6) -> dict[str, float]:
    """The median of each variant, in microseconds."""
    return {name: round(median(values) * scale, 1) for name, values in seconds.items()}
