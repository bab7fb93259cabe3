"""The real models as a parameter: smol135 in every run, the larger ones under the marker ``models``."""

import pytest

MODELS = [
    pytest.param("smol135"),
    pytest.param("qwen05", marks=pytest.mark.models),
    pytest.param("gemma270", marks=pytest.mark.models),
]
