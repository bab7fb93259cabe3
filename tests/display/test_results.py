"""What results show in a notebook and on a terminal, against llama.cpp's numbers for SmolLM2."""

import copy
import pickle
import re

import numpy as np
import pytest

from minfer_jax.generation import generate
from minfer_jax.model import Model
from minfer_jax.runtime import Runtime
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import multiple_choice, perplexity, score, score_texts
from minfer_jax.scoring.results import KLDivergence, Score
from tests.display.parsed import Element, parse
from tests.scoring.golden import GOLDEN

SMOL = GOLDEN["smol135"]
ROUNDED = 0.0051  # what two decimals hide, and a little


def shown(result: object) -> Element:
    return parse(result._repr_html_())  # pyright: ignore[reportAttributeAccessIssue]


def hinted(page: Element) -> list[float]:
    titles = [token.attributes["title"] or "" for token in page.all("ruby", "span")]
    return [float(found[1]) for title in titles if (found := re.search(r"log-probability (-?[\d.]+)", title))]


@pytest.mark.parametrize("name", ["prose", "code", "multilingual", "emoji"])
def test_a_text_as_a_heat_map(smol_exact: Model, name: str) -> None:
    golden = SMOL["texts"][name]
    (result,) = score_texts(smol_exact, [golden["text"]])
    page = shown(result)
    tokens = page.all("ruby", "span")
    assert [int((token.attributes["title"] or "").split(",")[0][3:]) for token in tokens] == golden["ids"]
    np.testing.assert_allclose(hinted(page), golden["token_logprobs"][1:], rtol=0, atol=1e-3)
    numbers = [number.text() for number in page.all("rt")]
    if numbers:
        assert numbers[0] == "–"
        np.testing.assert_allclose(
            list(map(float, numbers[1:])), golden["token_logprobs"][1:], rtol=0, atol=ROUNDED + 1e-3
        )
    # All that is text is there; pieces of characters are escapes, which read back as their bytes.
    read = page.all("div")[1].text(without=("rt",)).replace("↵", "")
    data = re.sub(rb"\\x(..)", lambda m: bytes([int(m[1], 16)]), read.encode())
    assert data.decode() == golden["text"]
    assert f"{sum(golden['token_logprobs'][1:]):.1f}"[:-2] in page.all("small")[0].text()


def test_scores_on_a_line_and_as_heat_maps(smol_exact: Model) -> None:
    golden = SMOL["choices"][0]
    paris, london = score(smol_exact, [(golden["context"], golden["choices"][i]["choice"]) for i in (0, 1)])
    assert str(paris) == 'Score: -0.2581 nats, 1 token, is_greedy: " Paris" -0.26'
    assert str(london).startswith("Score: -4.384") and str(london).endswith(' nats, 1 token: " London" -4.38')
    assert shown(london).all("ruby")[0].text() == " London-4.38"
    assert shown(paris).all("small")[0].text() == "-0.2581 nats, 1 token, is_greedy"
    (empty,) = score(smol_exact, [(golden["context"], "")])
    assert str(empty) == "Score: 0.0000 nats, 0 tokens, is_greedy, empty" and not shown(empty).all("ruby")


def test_the_tokenizer_is_no_part_of_a_score(smol_exact: Model) -> None:
    (result,) = score(smol_exact, [("The capital of France is", " Paris.")])
    assert result.token_texts == [" Paris", "."]
    plain = Score(result.logprob, result.token_logprobs, result.tokens, result.is_greedy)
    assert plain == result and repr(plain) == repr(result) and plain.to_dict() == result.to_dict()
    data = pickle.dumps([result] * 3)
    assert len(data) < 500
    for other in (plain, pickle.loads(data)[0], copy.copy(result)):
        assert other == result and other.token_texts == ["<7042>", "<30>"]
        assert [token.text(without=("rt",)) for token in shown(other).all("ruby")] == ["<7042>", "<30>"]


def test_choices_as_a_table(smol_exact: Model) -> None:
    golden = SMOL["multiple_choice"]
    result = multiple_choice(smol_exact, golden["context"], golden["choices"])
    header, *rows = shown(result).all("table")[0].table()
    assert header == ["choice", "logprob", "per token", "per byte", "best by"]
    for row, wanted in zip(rows, golden["scores"], strict=True):
        assert row[0] == f'"{wanted["choice"]}"'
        values = [wanted["sum"], wanted["per_token"], wanted["per_byte"]]
        np.testing.assert_allclose([float(number) for number in row[1:4]], values, rtol=0, atol=2e-3)
    best = [max(golden["scores"], key=lambda s: s[key])["choice"] for key in ("sum", "per_token", "per_byte")]
    for rule, winner in zip(("sum", "token", "byte"), best, strict=True):
        assert [row[0] for row in rows if rule in row[4].split(", ")] == [f'"{winner}"']
    title, names, *lines = str(result).splitlines()
    assert title == r'MultipleChoice: "Question: Which animal barks?\nAnswer:"' and names.split()[:2] == [
        "choice",
        "logprob",
    ]
    assert len(lines) == len(rows) and all(line.startswith(row[0]) for line, row in zip(lines, rows, strict=True))


def test_perplexity_as_facts(smol_exact: Model) -> None:
    text = SMOL["score"]["text"]
    result = perplexity(smol_exact, text, protocol="rolling")
    facts = dict(shown(result).all("table")[0].table())
    value, _, error = facts["perplexity"].partition(" +/- ")
    assert float(value) == pytest.approx(result.perplexity, rel=1e-3)
    assert float(error) == pytest.approx(result.standard_error, rel=1e-3)
    assert facts["n tokens"] == str(len(SMOL["score"]["ids"])) and facts["n bytes"] == str(len(text))
    assert "standard error" not in facts
    assert str(result).splitlines()[0] == "Perplexity" and f"n tokens         {len(SMOL['score']['ids'])}" in str(
        result
    )


def test_divergence_as_facts() -> None:
    numbers = {name: 0.5 for name, kind in KLDivergence.__annotations__.items() if kind is float}
    about = {"file": ["<a>.gguf"], "implementation": "ffi", "dtype": "packed"}
    fields = numbers | {"protocol": "llama.cpp", "n_ctx": 512, "windows": 2, "n_tokens": 9, "n_scored": 4}
    result = KLDivergence(**fields, model=about, reference={"file": ["b.kl"], "written_by": "x"})
    facts = dict(shown(result).all("table")[0].table())
    assert facts["mean"] == "0.5000 +/- 0.5000" and facts["same top"] == "0.5000 +/- 0.5000 %"
    assert facts["model"] == "<a>.gguf (ffi, packed)" and facts["reference"] == "b.kl (x)"
    assert "same top              0.5000 +/- 0.5000 %" in str(result).splitlines()


def test_a_generation_as_a_heat_map(smol_exact: Model) -> None:
    greedy = Sampler(temperature=0)
    result = generate(smol_exact, "The capital of France is", max_tokens=8, sampler=greedy, stop="\n")
    assert str(result) == r'Generation: 3 tokens after 5, stop at "\n": " Paris."'
    page = shown(result)
    assert page.all("ruby")[0].text() == " Paris-0.26"  # llama.cpp's -0.25808
    assert page.all("ruby")[2].text(without=("rt",)) == "↵"
    assert page.all("small")[0].text() == r'3 tokens after 5, stop at "\n"'


def test_a_model_as_facts(smol_model: Model) -> None:
    facts = dict(shown(smol_model).all("table")[0].table())
    assert facts["file"] == "SmolLM2-135M-Instruct.Q4_1.gguf (98 MB)"
    assert facts["architecture"] == "llama, 30 layers of width 576, 9 heads (3 of keys and values)"
    assert facts["weights"].startswith(
        "134.5 million, 5.7"
    )  # 576 x (49152 + 30 x 7 matrices...), 98 MB less vocabulary
    assert facts["tensors"] == "210 Q4_1, 61 F32, 1 Q8_0"
    assert (facts["vocabulary"], facts["context"]) == ("49,152 tokens", "8,192 tokens")
    assert smol_model.provenance["implementation"] in facts["runs as"]
    assert repr(smol_model).startswith("Model(SmolLM2") and repr(Runtime(smol_model)).startswith("Runtime(SmolLM2")


def test_cache_info_as_tables(smol_model: Model) -> None:
    runtime = Runtime(smol_model, promotion="blocking")
    for _ in range(3):
        score(runtime, [("The capital of France is", " Paris")])
    info = runtime.cache_info()
    page = shown(info)
    shapes, programs = (table.table() for table in page.all("table"))
    assert shapes[0] == ["shape", "bucket", "runs", "promoted", "hits", "failed"]
    assert shapes[1] == ["score b1 t5 o1 c0", "score b1 t16 o16 c0", "3", "yes", "1", "no"]
    assert [row[:2] for row in programs[1:]] == [["score b1 t16 o16 c0", "2"], ["score b1 t5 o1 c0", "1"]]
    assert page.all("small")[0].text().startswith("2 programs: ")
    lines = str(info).splitlines()
    assert lines[0].startswith("CacheInfo: 2 programs: ") and lines[3].split()[-4:] == ["3", "yes", "1", "no"]


class Printer:
    """As much of IPython's as a result uses."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def text(self, text: str) -> None:
        self.texts.append(text)


def test_ipython_shows_the_readable_text() -> None:
    printer = Printer()
    result = Score(-1.0, [-1.0], [5], is_greedy=False)
    vars(Score)["_repr_pretty_"](result, printer, False)  # its own: before an inherited one comes its __repr__
    assert printer.texts == ['Score: -1.0000 nats, 1 token: "<5>" -1.00']
