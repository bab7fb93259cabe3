"""Make data/rolling_windows.json with lm-evaluation-harness: ``pip install lm_eval==0.4.11``, then run this file."""

import json
from pathlib import Path

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]

SIZES = [(n, n_ctx) for n_ctx in (4, 7, 64) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15, 16, 63, 64, 65, 66, 128, 200)]


def windows(n: int, n_ctx: int) -> list[tuple[list[int], list[int]]]:
    """(context, continuation) of the places 1..n after place 0, the prefix."""
    rolling = get_rolling_token_windows(list(range(1, n + 1)), 0, n_ctx, 1)
    return [make_disjoint_window(window) for window in rolling]


def main() -> None:
    cases = []
    for n, n_ctx in SIZES:
        pairs = windows(n, n_ctx)
        # Every list is a run of neighbours, so its ends tell it all.
        assert all(part == list(range(part[0], part[-1] + 1)) for pair in pairs for part in pair)
        cases.append({"n": n, "n_ctx": n_ctx, "windows": [[c[0], t[0], t[-1] + 1] for c, t in pairs]})
    path = Path(__file__).parent.parent / "data" / "rolling_windows.json"
    path.write_text(json.dumps({"made_with": "lm_eval 0.4.11", "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
