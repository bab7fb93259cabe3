"""What tests do that change how a model is traced."""

import itertools
from dataclasses import replace

from minfer_jax.model import Model

_numbers = itertools.count(1)


def traced_anew(model: Model) -> Model:
    """The model with an epsilon that no other test has. JAX keeps traces for the whole process, of inner functions too:
    one made while a function is replaced would serve other tests, and one of theirs would serve here."""
    return replace(model, config=replace(model.config, rms_eps=model.config.rms_eps * (1 + next(_numbers) / 1024)))
