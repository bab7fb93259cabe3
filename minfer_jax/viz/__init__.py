"""The plots that notebooks share: from results to matplotlib's axes and figures (the extra ``viz``).

matplotlib is imported by the first plot, never by ``import minfer_jax``. Every function draws into ``ax`` where one is
given, else into a new figure, and gives back what it drew into, to be changed and saved by matplotlib's own methods.
"""

from minfer_jax.viz.calibration import calibration
from minfer_jax.viz.perplexity_curve import perplexity_curve
from minfer_jax.viz.quantisations import quantisations
from minfer_jax.viz.timeline import timeline

__all__ = ["calibration", "perplexity_curve", "quantisations", "timeline"]
