"""How a text's perplexity comes about, token by token."""

from typing import TYPE_CHECKING

import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.scoring import TextScore
from minfer_jax.viz.axes import axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def perplexity_curve(score: TextScore, *, window: int = 64, ax: "Axes | None" = None) -> "Axes":
    """Perplexity over a text, on a logarithmic scale: of all tokens up to each place, and of the last ``window``.

    score: of a text, as ``score_texts`` gives it; a first token without a value is left out. x: place of the token in
    the text, from 0. y: exp of the mean negative log-probability (nats per token) of the tokens that count. The
    second line begins where ``window`` tokens have been scored.

    Raises ArgumentError for a text without a scored token or a window below 1, UnsupportedError without matplotlib.
    """
    if not isinstance(score, TextScore):
        raise ArgumentError(f"score is {score!r:.40}; give a TextScore, as score_texts returns it")
    window = check_integer("window", window, 1)
    places = np.array([i for i, value in enumerate(score.token_logprobs) if value is not None])
    nll = -np.array([value for value in score.token_logprobs if value is not None], np.float64)
    if not len(nll):
        raise ArgumentError("the text has no token with a log-probability; give a longer one")
    sums = np.concatenate([[0.0], np.cumsum(nll)])
    ax = axes_or_new(ax)
    ax.plot(places, np.exp(sums[1:] / np.arange(1, len(nll) + 1)), label="all so far", color="C0", linewidth=2)
    if len(nll) >= window:
        recent = (sums[window:] - sums[:-window]) / window
        ax.plot(places[window - 1 :], np.exp(recent), label=f"last {window}", color="C1", linewidth=1)
    ax.set(xlabel="token of the text", ylabel="perplexity", yscale="log")
    ax.legend(frameon=False)
    return ax
