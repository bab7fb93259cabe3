"""KL divergence against float64 arithmetic on full logits, saved references, and bad input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError, MinferError, NumericsError
from minfer_jax.gguf.requantize import requantize
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.models.cache import init_cache
from minfer_jax.models.forward import forward
from minfer_jax.runtime.runtime import Runtime
from minfer_jax.scoring import KLDivergence, kl_divergence, perplexity, save_reference
from tests.promises import rounding
from tests.scoring.golden import PERPLEXITY_TEXT

TEXT = "the inner theater in an era of other things, and then another " * 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kl")


@pytest.fixture(scope="module")
def pair(folder: Path, tiny_gguf: Callable[[str], Path]) -> Callable[..., tuple[Model, Model]]:
    """pair(case, type, ...): the tiny model of a case requantised, and the case as it is."""

    def load_both(case: str, kind: str, **options: Any) -> tuple[Model, Model]:
        path = folder / f"{case}-{kind}.gguf"
        if not path.exists():
            requantize(tiny_gguf(case), path, kind)
        return load(path, **options), load(tiny_gguf(case), **options)

    return load_both


def chunk_logits(model: Model, text: str, n_ctx: int, max_chunks: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """What the second halves of chunks are predicted by, float64 [rows, vocab], and their ids: by the plain forward."""
    ids = model.tokenizer.encode(text)
    rows, targets = [], []
    for start in range(0, len(ids) - n_ctx + 1, n_ctx)[:max_chunks]:
        chunk = ids[start : start + n_ctx]
        if model.tokenizer.add_bos:
            chunk[0] = model.tokenizer.bos_id
        tokens = np.array([chunk], np.int32)
        cache = init_cache(model.config, 1, n_ctx)
        logits, _ = forward(model.params, model.config, tokens, np.arange(n_ctx, dtype=np.int32)[None], cache)
        rows.append(np.asarray(logits[0, n_ctx // 2 : -1], np.float64))
        targets += chunk[n_ctx // 2 + 1 :]
    return np.concatenate(rows), np.array(targets)


def by_hand(z: np.ndarray, z_reference: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The numbers of llama.cpp's tool in float64, written down from its source without our shortcuts."""
    q, p = (x - x.max(-1, keepdims=True) for x in (z, z_reference))
    q, p = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (q, p))
    kl = (np.exp(p) * (p - q)).sum(-1)
    n = len(targets)
    nll, base = -q[np.arange(n), targets], -p[np.arange(n), targets]
    delta = np.exp(-nll) - np.exp(-base)

    def error(x: np.ndarray) -> float:
        return math.sqrt(((x * x).mean() - x.mean() ** 2) / (n - 1))

    covariance = ((nll * base).mean() - nll.mean() * base.mean()) / (n - 1)
    ratio = math.exp(nll.mean() - base.mean())
    in_order = np.sort(kl)

    def quantile(fraction: float) -> float:
        place = fraction * (n - 1)
        i = int(place)
        return (1 - place + i) * in_order[i] + (place - i) * in_order[min(i + 1, n - 1)]

    same = (q.argmax(-1) == p.argmax(-1)).mean()
    rms = math.sqrt((delta**2).mean())
    return {
        "mean": kl.mean(),
        "standard_error": error(kl),
        "median": float(np.median(kl)),
        "quantile_90": quantile(0.9),
        "quantile_95": quantile(0.95),
        "quantile_99": quantile(0.99),
        "quantile_999": quantile(0.999),
        "maximum": kl.max(),
        "same_top": 100 * same,
        "same_top_error": 100 * math.sqrt(same * (1 - same) / (n - 1)),
        "perplexity": math.exp(nll.mean()),
        "perplexity_error": math.exp(nll.mean()) * error(nll),
        "reference_perplexity": math.exp(base.mean()),
        "reference_perplexity_error": math.exp(base.mean()) * error(base),
        "perplexity_ratio": ratio,
        "perplexity_ratio_error": ratio * math.sqrt(error(nll) ** 2 + error(base) ** 2 - 2 * covariance),
        "rms_delta_p": 100 * rms,
        "rms_delta_p_error": 100 * 0.5 / rms * error(delta**2),
        "mean_delta_p": 100 * delta.mean(),
        "mean_delta_p_error": 100 * error(delta),
        "n_scored": n,
    }


def numbers(result: KLDivergence) -> dict[str, float]:
    return {name: value for name, value in result.to_dict().items() if isinstance(value, int | float)}


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16"])
@pytest.mark.parametrize("case", ["llama", "mistral", "gemma2"])  # mistral with BOS, gemma2 with a soft cap
def test_every_number_as_float64_gives_it(pair, case: str, kind: str) -> None:
    model, reference = pair(case, kind, implementation="dense", dtype="float32")
    found = kl_divergence(model, reference, TEXT, n_ctx=32)
    z, targets = chunk_logits(model, TEXT, 32)
    expected = by_hand(z, chunk_logits(reference, TEXT, 32)[0], targets)
    assert expected["mean"] > 1e-7
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=2e-3, abs=1e-9), name
    assert found.windows == len(z) // 15 and found.n_tokens == len(model.tokenizer.encode(TEXT))


def test_smollm2_in_q4_0_as_float64_gives_it(smol135: Path, folder: Path) -> None:
    requantize(smol135, folder / "smol.gguf", "Q4_0")
    dense = {"implementation": "dense", "dtype": "float32"}
    model, reference = load(folder / "smol.gguf", **dense), load(smol135, **dense)
    found = kl_divergence(model, reference, PERPLEXITY_TEXT, n_ctx=128, max_chunks=2)
    z, targets = chunk_logits(model, PERPLEXITY_TEXT, 128, 2)
    expected = by_hand(z, chunk_logits(reference, PERPLEXITY_TEXT, 128, 2)[0], targets)
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-3), name
    assert 0.1 < found.mean < 0.5  # a model this small pays for four bits

    # The native kernels round the inputs of products, which is far less than what is measured here.
    native = kl_divergence(load(folder / "smol.gguf"), load(smol135), PERPLEXITY_TEXT, n_ctx=128, max_chunks=2)
    assert native.mean == pytest.approx(found.mean, rel=2e-3)
    assert native.perplexity_ratio == pytest.approx(found.perplexity_ratio, rel=1e-3)


@pytest.mark.parametrize("implementation", [None, "dense"])
def test_a_model_is_no_distance_from_itself(smol135: Path, folder: Path, implementation: str | None) -> None:
    model = load(smol135, implementation=implementation)
    result = kl_divergence(model, model, PERPLEXITY_TEXT, n_ctx=64, max_chunks=2)
    assert 0 <= result.mean <= result.maximum < 1e-9
    assert (result.same_top, result.perplexity_ratio, result.rms_delta_p) == (100, 1, 0)


def test_the_same_weights_in_another_type_are_no_distance(smol135: Path, smol_model: Model, folder: Path) -> None:
    requantize(smol135, folder / "f32.gguf", "F32")
    result = kl_divergence(load(folder / "f32.gguf"), smol_model, PERPLEXITY_TEXT, n_ctx=64, max_chunks=2)
    assert result.mean < 1e-6 and result.maximum < 1e-5
    assert result.model["quantisation"] == {"F32": 272} and result.model["sha256"] != result.reference["sha256"]


def test_perplexities_are_those_of_perplexity(pair) -> None:
    for n_ctx in (32, 48):
        model, reference = pair("mistral", "Q4_0")
        found = kl_divergence(model, reference, TEXT, n_ctx=n_ctx)
        for of, value, error in (
            (model, found.perplexity, found.perplexity_error),
            (reference, found.reference_perplexity, found.reference_perplexity_error),
        ):
            expected = perplexity(of, TEXT, n_ctx=n_ctx)
            assert value == pytest.approx(expected.perplexity, rel=rounding(of, 1e-5), abs=0)
            assert error == pytest.approx(expected.standard_error, rel=rounding(of, 1e-4), abs=0)
            assert (found.windows, found.n_tokens, found.n_scored) == (
                expected.windows,
                expected.n_tokens,
                expected.n_scored,
            )


def test_long_windows_go_in_pieces(smol135: Path, folder: Path, smol_model: Model) -> None:
    # 600 ids before the scored half, which then is 599 rows: two pieces of context, five of logits.
    runtime = Runtime(smol_model)
    found = kl_divergence(runtime, smol_model, PERPLEXITY_TEXT, n_ctx=1200, max_chunks=1)
    expected = perplexity(smol_model, PERPLEXITY_TEXT, n_ctx=1200, max_chunks=1)
    assert found.n_scored == 599
    assert found.perplexity == pytest.approx(expected.perplexity, rel=rounding(smol_model, 1e-5), abs=0)
    pieces = [shape.shape for shape in runtime.cache_info().shapes.values()]
    assert all("o" in shape for shape in pieces)
    assert max(int(shape.split(" o")[1].split()[0]) for shape in pieces) == 128


def test_a_saved_reference_gives_what_the_model_gives(pair, folder: Path) -> None:
    for kind in ("Q4_0", "Q8_0"):
        model, reference = pair("llama", kind)
        live = numbers(kl_divergence(model, reference, TEXT, n_ctx=32))
        path = folder / "saved.kl"
        saved_perplexity = save_reference(reference, TEXT, path, n_ctx=32)
        expected = perplexity(reference, TEXT, n_ctx=32)
        assert saved_perplexity.perplexity == pytest.approx(expected.perplexity, rel=rounding(reference, 1e-5), abs=0)
        assert saved_perplexity.n_scored == expected.n_scored
        result = kl_divergence(model, path)
        assert result.reference["saved"] is True and result.reference["sha256"] == reference.sha256()
        for name, value in numbers(result).items():
            if name in ("mean", "standard_error", "maximum", "median") or name.startswith("quantile"):
                assert value == pytest.approx(live[name], rel=2e-3, abs=1e-8), (kind, name)
            else:
                assert value == live[name], (kind, name)
        assert kl_divergence(model, path, TEXT, n_ctx=32) == result
        assert kl_divergence(model, path, max_chunks=1).n_scored == 15


def test_a_saved_reference_of_smollm2(smol_model: Model, smol135: Path, folder: Path) -> None:
    requantize(smol135, folder / "q5.gguf", "Q5_1")
    model = load(folder / "q5.gguf")
    live = kl_divergence(model, smol_model, PERPLEXITY_TEXT, n_ctx=64, max_chunks=3)
    save_reference(smol_model, PERPLEXITY_TEXT, folder / "smol.kl", n_ctx=64, max_chunks=3)
    saved = kl_divergence(model, folder / "smol.kl")
    assert saved.mean == pytest.approx(live.mean, rel=1e-4) and saved.maximum == pytest.approx(live.maximum, rel=1e-3)
    assert (saved.same_top, saved.perplexity_ratio) == (live.same_top, live.perplexity_ratio)
    rows, vocab = 3 * 31, 49152
    assert (folder / "smol.kl").stat().st_size < 2 * rows * vocab + 16 * rows + 4 * 3 * 64 + 4096
    itself = kl_divergence(smol_model, folder / "smol.kl")
    assert itself.maximum < 2e-8 and itself.same_top == 100


def test_what_a_result_tells(pair) -> None:
    model, reference = pair("llama", "Q4_0")
    result = kl_divergence(model, reference, TEXT, n_ctx=16, max_chunks=2)
    told = json.loads(json.dumps(result.to_dict()))
    assert told["model"]["sha256"] == model.sha256() and told["reference"]["sha256"] == reference.sha256()
    for about in (told["model"], told["reference"]):
        assert about.keys() >= {"file", "quantisation", "implementation", "dtype", "versions", "backend"}
    assert (told["protocol"], told["n_ctx"], told["windows"], told["reference"]["saved"]) == ("llama.cpp", 16, 2, False)


def test_other_vocabularies_and_texts_are_refused(pair, tiny_gguf, folder: Path, smol_model: Model) -> None:
    model, reference = pair("llama", "Q4_0")
    other = load(tiny_gguf("mistral"))
    with pytest.raises(ArgumentError, match=r"has \d+ tokens and .* 49152; KL divergence needs the same"):
        kl_divergence(model, smol_model, TEXT, n_ctx=16)
    with pytest.raises(ArgumentError, match=r"KL divergence needs the same"):
        kl_divergence(model, other, TEXT, n_ctx=16)
    path = folder / "of-llama.kl"
    save_reference(reference, TEXT, path, n_ctx=16, max_chunks=3)
    with pytest.raises(ArgumentError, match=r"the reference in .*of-llama.kl.*KL divergence needs the same"):
        kl_divergence(other, path)
    with pytest.raises(ArgumentError, match=r"of-llama.kl was saved of another text"):
        kl_divergence(model, path, TEXT.upper())
    with pytest.raises(ArgumentError, match=r"n_ctx is 32, and .*of-llama.kl was saved with 16"):
        kl_divergence(model, path, n_ctx=32)
    with pytest.raises(ArgumentError, match="max_chunks is 0"):
        kl_divergence(model, path, max_chunks=0)
    with pytest.raises(ArgumentError, match="n_ctx is 16, more than the model's window of 8"):
        kl_divergence(load(tiny_gguf("llama"), n_ctx=8), path)
    with pytest.raises(ArgumentError, match="n_ctx is 16, more than the model's window of 8"):
        kl_divergence(model, load(tiny_gguf("llama"), n_ctx=8), TEXT, n_ctx=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": None}, "text is None; give a text, or a saved reference"),
        ({"text": "short"}, "the text has 5 tokens and this protocol needs 32, two chunks"),
        ({"text": 5}, "text must be a string"),
        ({"n_ctx": 3}, "n_ctx is 3"),
        ({"n_ctx": 512}, "n_ctx is 512, more than the model's window of 256"),
        ({"max_chunks": 0}, "max_chunks is 0"),
        ({"reference": 5}, "reference is 5; give a Model or the path"),
        ({"reference": "nowhere.kl"}, "nowhere.kl: cannot be read: No such file"),
        ({"reference": "a\0b"}, "cannot be read: "),
    ],
)
def test_bad_arguments(tiny_model: Model, arguments: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        kl_divergence(tiny_model, **{"reference": tiny_model, "text": TEXT, "n_ctx": 16, **arguments})


def test_every_cut_and_every_damage_is_one_clear_line(tiny_model: Model, tmp_path: Path) -> None:
    path = tmp_path / "whole.kl"
    save_reference(tiny_model, TEXT, path, n_ctx=16, max_chunks=2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["whole.kl"]
    whole = path.read_bytes()
    kl_divergence(tiny_model, path)
    broken = tmp_path / "broken.kl"
    header = 12 + int.from_bytes(whole[8:12], "little")

    def assert_refused(data: bytes, words: str) -> None:
        broken.write_bytes(data)
        with pytest.raises(MinferError, match=words) as caught:
            kl_divergence(tiny_model, broken)
        assert "broken.kl" in str(caught.value) and "\n" not in str(caught.value)

    for size in (*range(0, header + 200, 37), header, len(whole) - 1, len(whole) - 4, len(whole) // 2):
        assert_refused(whole[:size], "not a saved reference|cut off")
    assert_refused(whole + b"x", "too long")
    assert_refused(b"GGUF" + whole[4:], "not a saved reference")
    for place, words in (
        (header + 3, "ids are damaged"),
        (header + 4 * 32 + 100, "chunk 0: .*distributions are damaged"),
        (len(whole) - 1, "chunk 1: .*distributions are damaged"),
        (20, "header is damaged"),
        (11, "header is damaged"),
    ):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        assert_refused(bytes(damaged), words)

    values = json.loads(whole[12:header])
    for change, words in (
        ({"version": 2}, "layout version 2, not 1"),
        ({"n_ctx": 0}, "header is damaged"),
        ({"n_chunks": "2"}, "header is damaged"),
        ({"vocab_size": 1 << 60}, "header is damaged"),
        ({"n_chunks": 1 << 60}, "cut off"),
        ({"more": 1}, "header is damaged"),
    ):
        text = json.dumps(values | change).encode()
        assert_refused(whole[:8] + len(text).to_bytes(4, "little") + text + whole[header:], words)


def test_a_reference_that_cannot_be_written(tiny_model: Model, tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "file.kl", "there is no folder"),
        ("", "path is ''"),
        (5, "path is 5"),
    ):
        with pytest.raises(ArgumentError, match=words):
            save_reference(tiny_model, TEXT, path, n_ctx=16)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file(tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.kl"
    path.write_bytes(b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minfer_jax.scoring.kl.pack_rows", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_reference(tiny_model, TEXT, path, n_ctx=16)
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["r.kl"]


def test_weights_that_are_not_finite_are_named(tiny_model: Model, tiny_gguf, tmp_path: Path) -> None:
    from gguf import GGUFReader

    data = bytearray(tiny_gguf("llama").read_bytes())
    tensor = next(t for t in GGUFReader(tiny_gguf("llama")).tensors if t.name == "output_norm.weight")
    data[tensor.data_offset : tensor.data_offset + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(data)
    bad = load(tmp_path / "nan.gguf")
    with pytest.raises(NumericsError, match=r"chunk 0: .* not finite; the weights of nan.gguf"):
        kl_divergence(bad, tiny_model, TEXT, n_ctx=16)
    with pytest.raises(NumericsError, match=r"chunk 0: .* not finite; the weights of nan.gguf"):
        kl_divergence(tiny_model, bad, TEXT, n_ctx=16)
    with pytest.raises(NumericsError, match=r"chunk 0: .* not finite; the weights of nan.gguf"):
        save_reference(bad, TEXT, tmp_path / "nan.kl", n_ctx=16)
    assert not (tmp_path / "nan.kl").exists()
