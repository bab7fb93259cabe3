"""Without matplotlib the package imports, and a plot says what is missing."""

import builtins

import pytest

import minfer_jax as mj


def test_one_line_where_matplotlib_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(mj.UnsupportedError, match=r"No module named 'matplotlib'.*pip install matplotlib") as caught:
        mj.viz.calibration([0.5], [True])
    assert "\n" not in str(caught.value)
