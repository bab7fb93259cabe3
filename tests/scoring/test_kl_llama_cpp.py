"""KL divergence against llama.cpp's own tool: its numbers, and the reference files that it writes."""

import json
import struct
from pathlib import Path

import pytest

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.scoring import KLDivergence, kl_divergence
from tests.scoring.make_kl_golden import DATA, KL_CASES, TEXT, write_pair

GOLDEN = json.loads((DATA / "kl.json").read_text(encoding="utf-8"))

PRINTED = {
    "Mean    KLD": ("mean", "standard_error"),
    "Median  KLD": ("median",),
    "90.0%   KLD": ("quantile_90",),
    "95.0%   KLD": ("quantile_95",),
    "99.0%   KLD": ("quantile_99",),
    "99.9%   KLD": ("quantile_999",),
    "Maximum KLD": ("maximum",),
    "Same top p": ("same_top", "same_top_error"),
    "Mean PPL(Q)": ("perplexity", "perplexity_error"),
    "Mean PPL(base)": ("reference_perplexity", "reference_perplexity_error"),
    "Mean PPL(Q)/PPL(base)": ("perplexity_ratio", "perplexity_ratio_error"),
    "RMS Δp": ("rms_delta_p", "rms_delta_p_error"),
    "Mean    Δp": ("mean_delta_p", "mean_delta_p_error"),
}


@pytest.fixture(scope="module", params=KL_CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Model, Model]:
    """A name, the model that is compared, and the reference."""
    reference, model = write_pair(request.param, tmp_path_factory.mktemp("kl"))
    return request.param, load(model, precision="exact"), load(reference, precision="exact")


def assert_printed(found: KLDivergence, case: str, rel: float) -> None:
    """Every number that the tool prints, to its last digits."""
    printed = GOLDEN["cases"][case]
    for name, fields in PRINTED.items():
        for field, value in zip(fields, printed[name], strict=True):
            last_digit = 6e-4 if "top" in field or "delta" in field else 6e-7
            assert getattr(found, field) == pytest.approx(value, rel=rel, abs=last_digit), (name, field)
    assert (found.n_ctx, found.windows) == (GOLDEN["n_ctx"], GOLDEN["chunks"])


def test_the_tools_reference_file_gives_the_tools_numbers(case: tuple[str, Model, Model]) -> None:
    name, model, _ = case
    found = kl_divergence(model, DATA / f"kl_{name}.kld")
    assert_printed(found, name, 2e-5)
    assert found.reference == {"file": [f"kl_{name}.kld"], "written_by": "llama.cpp", "saved": True}
    assert kl_divergence(model, DATA / f"kl_{name}.kld", TEXT) == found


def test_a_live_reference_gives_the_tools_numbers(case: tuple[str, Model, Model]) -> None:
    # But for what the tool leaves out: tokens below e^-16, and half a step of 16 nats / 65,535.
    name, model, reference = case
    found = kl_divergence(model, reference, TEXT, n_ctx=GOLDEN["n_ctx"], max_chunks=GOLDEN["chunks"])
    assert_printed(found, name, 1e-3)


def test_a_file_of_the_tool_that_is_not_whole(case: tuple[str, Model, Model], tmp_path: Path) -> None:
    name, model, reference = case
    whole = (DATA / f"kl_{name}.kld").read_bytes()
    path = tmp_path / "broken.kld"
    for data, words in (
        (whole[:-1], "cut off"),
        (whole + b"x", "too long"),
        (whole[:15], "cut off"),
        (whole[:8] + bytes(4) + whole[12:], "header is damaged"),
        (whole[:12] + struct.pack("<i", -5) + whole[16:], "header is damaged"),
        (whole[:20] + struct.pack("<i", 1 << 20) + whole[24:], "ids are damaged"),
    ):
        path.write_bytes(data)
        with pytest.raises(MinferError, match=rf"broken.kld: .*{words}"):
            kl_divergence(model, path)
    other = next(other for other in KL_CASES if other != name)
    with pytest.raises(ArgumentError, match=r"tokens and the reference in .* KL divergence needs the same vocabulary"):
        kl_divergence(model, DATA / f"kl_{other}.kld")
    with pytest.raises(ArgumentError, match="was saved of another text"):
        kl_divergence(model, DATA / f"kl_{name}.kld", TEXT.upper())
