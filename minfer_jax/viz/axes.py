"""Where a plot goes. The only place that imports matplotlib."""

from typing import TYPE_CHECKING

from minfer_jax.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(columns: int, width: float, height: float) -> "tuple[Figure, list[Axes]]":
    """A figure of that many axes in a row; width and height in inches, of all. UnsupportedError without matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        what = "pip install matplotlib"
        raise UnsupportedError(f"plots need matplotlib, which cannot be imported ({error}); {what}") from error
    figure, axes = pyplot.subplots(1, columns, figsize=(width, height), layout="constrained", squeeze=False)
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
        ax.set_axisbelow(True)
    return figure, list(axes[0])


def axes_or_new(ax: "Axes | None", width: float = 6.4, height: float = 3.2) -> "Axes":
    """The axes that are given, or those of a new figure."""
    return new_figure(1, width, height)[1][0] if ax is None else ax
