"""What is drawn, read back from the axes, against the input by numpy."""

import numpy as np
import pytest

from minfer_jax import viz
from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.runtime import Runtime, TraceRecord
from minfer_jax.scoring import KLDivergence, TextScore, score, score_texts
from tests.scoring.golden import GOLDEN

matplotlib = pytest.importorskip("matplotlib", reason="plots are an extra: pip install matplotlib")
matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402  (after the choice of a backend)


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def text_score(values: list[float | None]) -> TextScore:
    return TextScore(0.0, values, list(range(len(values))), [], 1)


def test_perplexity_curve_of_a_golden_text(smol_exact: Model) -> None:
    golden = GOLDEN["smol135"]["texts"]["prose"]
    nll = -np.array(golden["token_logprobs"][1:])
    ax = viz.perplexity_curve(score_texts(smol_exact, [golden["text"]])[0], window=16)
    so_far, recent = ax.get_lines()
    places = np.arange(1, len(nll) + 1)  # the first token has no value
    np.testing.assert_array_equal(so_far.get_xdata(), places)
    np.testing.assert_allclose(so_far.get_ydata(), np.exp(np.cumsum(nll) / places), rtol=2e-3)
    np.testing.assert_array_equal(recent.get_xdata(), places[15:])
    wanted = [np.exp(nll[i - 16 : i].mean()) for i in range(16, len(nll) + 1)]
    np.testing.assert_allclose(recent.get_ydata(), wanted, rtol=2e-3)
    assert ax.get_yscale() == "log"


def test_perplexity_curve_in_given_axes_and_of_a_short_text() -> None:
    figure, ax = pyplot.subplots()
    assert viz.perplexity_curve(text_score([None, -1.0, -3.0]), ax=ax) is ax
    (line,) = ax.get_lines()  # no 64 tokens for the second one
    np.testing.assert_allclose(line.get_ydata(), np.exp([1.0, 2.0]))
    with pytest.raises(ArgumentError, match="no token with a log-probability"):
        viz.perplexity_curve(text_score([None]))
    with pytest.raises(ArgumentError, match="window is 0"):
        viz.perplexity_curve(text_score([-1.0]), window=0)
    with pytest.raises(ArgumentError, match="TextScore"):
        viz.perplexity_curve([-1.0])  # pyright: ignore[reportArgumentType]


def test_calibration_against_bins_by_hand() -> None:
    rng = np.random.default_rng(3)
    p = np.concatenate([rng.random(500), [0.0, 1.0, 0.2]])
    hit = np.concatenate([rng.random(500) < p[:500] ** 2, [False, True, True]])
    ax = viz.calibration(p, hit, bins=5)
    diagonal, points = ax.get_lines()[:2]
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, np.inf])
    bins = [(p >= a) & (p < b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    wanted = np.array([[p[chosen].mean(), hit[chosen].mean()] for chosen in bins])
    np.testing.assert_allclose(points.get_xydata(), wanted)
    error = sum(chosen.mean() * abs(p[chosen].mean() - hit[chosen].mean()) for chosen in bins)
    assert ax.get_legend_handles_labels()[1] == [f"calibration error {error:.3f}, n = 503"]
    (bars,) = ax.collections
    spread = [np.sqrt(hit[chosen].mean() * (1 - hit[chosen].mean()) / chosen.sum()) for chosen in bins]
    np.testing.assert_allclose([np.ptp(bar.vertices[:, 1]) / 2 for bar in bars.get_paths()], spread)


def test_calibration_leaves_out_empty_bins_and_says_what_is_wrong() -> None:
    ax = viz.calibration([0.05, 0.95], [True, True])
    np.testing.assert_allclose(ax.get_lines()[1].get_xydata(), [[0.05, 1], [0.95, 1]])
    for probabilities, outcomes, words in [
        ([], [], "N > 0"),
        ([0.5], [True, False], r"\(1,\) and outcomes \(2,\)"),
        ([-1.0], [True], "outside 0..1"),
        ([float("nan")], [True], "outside 0..1"),
        ([0.5], [1], "give bool"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            viz.calibration(probabilities, outcomes)


def record(shape: str, program: str, began: float, *parts: float | None) -> TraceRecord:
    dispatch, device, readback = parts
    assert dispatch is not None
    return TraceRecord(f"graph/{shape}", 1, program, False, 1, 9, began, dispatch, device, readback)


def test_timeline_puts_parts_behind_each_other() -> None:
    records = [
        record("a", "b", 5e6, 1000, 2000, 500),
        record("a", "a", 5.01e6, 10, None, None),
        record("a", "b", 5.02e6, 1, 2, 3),
    ]
    ax = viz.timeline(records)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a\nin bucket b", "a"]
    bars = [[(bar.get_x(), bar.get_width(), bar.get_y() + 0.3) for bar in group] for group in ax.containers]
    dispatch, device, readback = np.array(bars)
    np.testing.assert_allclose(dispatch, [[0, 1, 0], [10, 0.01, 1], [20, 0.001, 0]], atol=1e-9)
    np.testing.assert_allclose(device, [[1, 2, 0], [10.01, 0, 1], [20.001, 0.002, 0]], atol=1e-9)
    np.testing.assert_allclose(readback, [[3, 0.5, 0], [10.01, 0, 1], [20.003, 0.003, 0]], atol=1e-9)
    labels = ax.get_legend_handles_labels()[1]
    assert labels == ["dispatch", "device", "readback"]
    for nothing in ([], [1]):
        with pytest.raises(ArgumentError, match="runtime.trace"):
            viz.timeline(nothing)  # pyright: ignore[reportArgumentType]


def test_timeline_of_a_real_trace(smol_model: Model) -> None:
    runtime = Runtime(smol_model, promotion="blocking")
    with runtime.trace() as records:
        for _ in range(3):
            score(runtime, [("The capital of France is", " Paris")])
    began = [r.began_us for r in records]
    assert began == sorted(began) and all(
        a.began_us + a.dispatch_us + (a.readback_us or 0) <= b.began_us
        for a, b in zip(records[:-1], records[1:], strict=True)
    )
    ax = viz.timeline(records)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["score b1 t5 o1 c0\nin bucket score b1 t16 o16 c0", "score b1 t5 o1 c0"]
    assert len(ax.containers) == 2  # nobody waited for the device
    ax.figure.savefig("/dev/null", format="png")


def divergence(**values: float) -> KLDivergence:
    numbers = {name: 0.0 for name, kind in KLDivergence.__annotations__.items() if kind is float}
    how = {"protocol": "llama.cpp", "n_ctx": 512, "windows": 2, "n_tokens": 9, "n_scored": 4}
    return KLDivergence(**(numbers | values | how), model={}, reference={})  # pyright: ignore[reportArgumentType]


def test_quantisations_against_bits() -> None:
    results = [
        divergence(mean=0.1, standard_error=0.01, perplexity=12.0, perplexity_error=0.5, reference_perplexity=10.0),
        divergence(mean=0.001, standard_error=0.0001, perplexity=10.5, perplexity_error=0.4, reference_perplexity=10.0),
    ]
    figure = viz.quantisations(["Q4_0", "Q8_0"], [4.5, 8.5], results, [100.0, 60.0], speed_label="x per s")
    perplexity, kl, speed = figure.axes
    for ax, wanted in ((perplexity, [12, 10.5]), (kl, [0.1, 0.001]), (speed, [100, 60])):
        np.testing.assert_allclose(ax.get_lines()[0].get_xydata(), np.transpose([[4.5, 8.5], wanted]))
        assert [text.get_text() for text in ax.texts] == ["Q4_0", "Q8_0"]
        assert ax.get_xlabel() == "bits per weight"
    np.testing.assert_allclose(perplexity.get_lines()[-1].get_ydata(), [10, 10])
    for ax, wanted in ((perplexity, [0.5, 0.4]), (kl, [0.01, 0.0001])):
        spread = [np.ptp(bar.vertices[:, 1]) / 2 for bar in ax.collections[0].get_paths()]
        np.testing.assert_allclose(spread, wanted, rtol=1e-6)
    assert kl.get_yscale() == "log" and speed.get_ylabel() == "x per s"
    assert len(viz.quantisations(["Q4_0"], [4.5], results[:1]).axes) == 2
    with pytest.raises(ArgumentError, match=r"lengths \[1, 2\]"):
        viz.quantisations(["Q4_0"], [4.5, 8.5], results)
    with pytest.raises(ArgumentError, match=r"lengths \[0\]"):
        viz.quantisations([], [], [])
