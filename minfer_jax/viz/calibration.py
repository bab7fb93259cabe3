"""Whether probabilities are honest: how often what is called 70 % happens."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.viz.axes import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def calibration(probabilities: ArrayLike, outcomes: ArrayLike, *, bins: int = 10, ax: "Axes | None" = None) -> "Axes":
    """Reliability diagram: predictions in bins of equal width, and how often those in each came true.

    probabilities: [N] in 0..1, what was predicted. outcomes: [N] bool, whether it happened.
    x: mean probability of a bin. y: share of its predictions that came true, with its binomial standard error
    sqrt(p (1 - p) / n). On the diagonal a prediction is worth its face value; below it, it is overconfident. The label
    gives the expected calibration error, the mean distance from the diagonal weighted by the sizes of the bins (Guo et
    al., arXiv 1706.04599).

    Raises ArgumentError for shapes that differ, no predictions, or numbers that are no probabilities; UnsupportedError
    without matplotlib.
    """
    p, hit = np.asarray(probabilities, np.float64), np.asarray(outcomes)
    bins = check_integer("bins", bins, 1)
    if p.ndim != 1 or p.shape != hit.shape or not p.size:
        raise ArgumentError(f"probabilities is {p.shape} and outcomes {hit.shape}; give two of one length [N], N > 0")
    if not ((p >= 0) & (p <= 1)).all():
        raise ArgumentError("probabilities holds numbers outside 0..1; give exp of log-probabilities")
    if hit.dtype != bool:
        raise ArgumentError(f"outcomes is {hit.dtype}; give bool, True for what happened")
    number = np.minimum((p * bins).astype(int), bins - 1)
    sizes = np.bincount(number, minlength=bins)
    used = sizes > 0
    n = sizes[used]
    predicted = np.bincount(number, p, bins)[used] / n
    happened = np.bincount(number, hit, bins)[used] / n
    error = float((n * np.abs(predicted - happened)).sum() / n.sum())
    ax = axes_or_new(ax, 4.2, 4.0)
    ax.plot([0, 1], [0, 1], color="gray", linestyle="--", linewidth=1)
    spread, label = np.sqrt(happened * (1 - happened) / n), f"calibration error {error:.3f}, n = {p.size:,}"
    ax.errorbar(predicted, happened, yerr=spread, fmt="o-", capsize=3, label=label)
    ax.set(xlabel="predicted probability", ylabel="share that came true", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(frameon=False, loc="upper left")
    return ax
