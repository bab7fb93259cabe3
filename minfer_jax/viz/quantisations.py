"""What fewer bits cost, and what they bring."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minfer_jax.errors import ArgumentError
from minfer_jax.scoring import KLDivergence
from minfer_jax.viz.axes import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def quantisations(
    names: Sequence[str],
    bits: Sequence[float],
    divergences: Sequence[KLDivergence],
    speeds: Sequence[float] | None = None,
    *,
    speed_label: str = "tokens/s",
) -> "Figure":
    """Quantisations of one model against bits per weight, side by side: perplexity with its standard error and the
    reference's as a line, mean KL divergence from the reference in nats per token (logarithmic) with its standard
    error, and, where given, speed.

    names, bits, divergences, speeds: one entry per quantisation; bits per weight as ``model.file.bits_per_weight``;
    divergences from one reference on one text. speeds: in the unit that speed_label names.

    Raises ArgumentError unless all have one length above 0, and UnsupportedError without matplotlib.
    """
    sizes = {len(names), len(bits), len(divergences), *([] if speeds is None else [len(speeds)])}
    if len(sizes) != 1 or sizes == {0}:
        what = "names, bits, divergences and speeds"
        raise ArgumentError(f"{what} have lengths {sorted(sizes)}; give one entry for each quantisation")
    columns = 2 if speeds is None else 3
    figure, axes = new_figure(columns, 3.5 * columns, 3.2)
    _points(axes[0], names, bits, [d.perplexity for d in divergences], [d.perplexity_error for d in divergences])
    axes[0].axhline(divergences[0].reference_perplexity, color="gray", linestyle="--", linewidth=1, label="reference")
    axes[0].set_ylabel("perplexity")
    axes[0].legend(frameon=False)
    _points(axes[1], names, bits, [d.mean for d in divergences], [d.standard_error for d in divergences])
    axes[1].set(ylabel="KL divergence, nats per token", yscale="log")
    if speeds is not None:
        _points(axes[2], names, bits, speeds, None)
        axes[2].set(ylabel=speed_label)
        axes[2].set_ylim(bottom=0)
    return figure


def _points(
    ax: "Axes", names: Sequence[str], x: Sequence[float], y: Sequence[float], errors: Sequence[float] | None
) -> None:
    ax.errorbar(x, y, yerr=errors, fmt="o", capsize=3)
    for i, (x_at, y_at, name) in enumerate(sorted(zip(x, y, names, strict=True))):  # neighbours on different sides
        side, ha = ((6, 4), "left") if i % 2 else ((-6, 4), "right")
        ax.annotate(name, (x_at, y_at), xytext=side, ha=ha, textcoords="offset points", fontsize="small")
    ax.margins(x=0.35, y=0.15)
    ax.set_xlabel("bits per weight")
