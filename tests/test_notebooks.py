"""The notebooks are as they should be committed: executed from top to bottom without errors, small, and telling nothing
of the machine that ran them. ``make notebooks`` executes them again."""

import ast
import getpass
import json
import re
import socket
from pathlib import Path

import pytest

from tests.display.parsed import parse

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def displayed(notebook: dict, kind: str) -> list[str]:
    """What outputs hold of a MIME type."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"] if "data" in output]
    return ["".join(output["data"][kind]) for output in outputs if kind in output["data"]]


def test_they_are_numbered_and_each_is_linked() -> None:
    names = [path.name for path in NOTEBOOKS]
    assert [name[:3] for name in names] == [f"{i:02}_" for i in range(1, len(names) + 1)] and len(names) >= 6
    texts = ["".join(cell["source"]) for path in NOTEBOOKS for cell in read(path)["cells"]]
    linked = {link for text in texts for link in re.findall(r"\]\((\w+\.ipynb)\)", text)}
    assert linked <= set(names) and set(names[1:]) <= linked


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run_without_errors(path: Path) -> None:
    notebook = read(path)
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    for output in outputs:
        assert output["output_type"] in ("stream", "execute_result", "display_data"), output
        assert output.get("name") != "stderr", output  # warnings, logs
    for cell in cells:  # text of many prints is one
        names = [output["name"] for output in cell["outputs"] if output["output_type"] == "stream"]
        assert len(names) == len(set(names))
    assert notebook["cells"][0]["source"][0].startswith("# ")  # a title


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_small_and_tell_nothing_of_the_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    notebook = read(path)
    for output in (output for cell in code_cells(notebook) for output in cell["outputs"]):
        output.get("data", {}).pop("image/png", None)
    words = json.dumps(notebook["cells"], ensure_ascii=False)
    assert not re.search(r"(?<![\w.:<~/])/(home|root|work|tmp|Users|usr|var|opt|private)\b", words)
    assert not re.search(r"[A-Z]:\\\\", words) and "site-packages" not in words
    names = {name for name in (getpass.getuser(), socket.gethostname()) if len(name) > 4}
    assert not [name for name in names if name in words]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_html_in_them_is_the_displays_and_whole(path: Path) -> None:
    for page in displayed(read(path), "text/html"):
        assert parse(page).all("div")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_is_python_and_its_lines_fit_a_page(path: Path) -> None:
    for cell in code_cells(read(path)):
        source = "".join(cell["source"])
        ast.parse(source)
        assert max(map(len, source.splitlines())) <= 120
