"""The code blocks of the documents (README, CONTRIBUTING, docs/): which run, what they print, and which do not run.

``python`` and ``console`` blocks run, in order, page by page; a block with a title is a file of that name. What a block
shows is compared: lines after ``#> `` in Python, and in a console all that is no command. There ``...`` stands for any
text. A block that cannot run says why in the line in front of it: ``<!-- not run: needs a GPU -->``.
``python -m tests.documents`` lists those.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

LANGUAGES = {"python", "console", "json", "text", "html"}
REASONS = {
    "needs a GPU",
    "needs a cluster",
    "needs llama.cpp",
    "needs the network",
    "run by CI itself",
    "takes minutes",
}

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w*)(?: title=\"(?P<title>.+?)\")?\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: language, text, the line it begins at, its title, and why it does not run (None: it does)."""

    page: Path
    line: int
    language: str
    text: str
    title: str | None
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def output(self) -> str:
        """What a Python block says that it prints."""
        return "\n".join(line[3:] for line in self.text.splitlines() if line.startswith("#> "))

    def commands(self) -> Iterator[tuple[str, str]]:
        """Of a console block each command, with what is shown below it."""
        text = self.text.replace("\\\n", " ")
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output.rstrip()


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start("language")) + 1, m["language"], m["text"], m["title"], m["reason"])
        for m in _FENCE.finditer(text)
    ]


def assert_shown(where: object, shown: str, printed: str) -> None:
    """That what is shown was printed: the same words, whole numbers as they are, others to 2 % or the last digit."""
    pattern = r"\s*"
    numbers = []
    for word in re.split(rf"(\.\.\.|\s+|{_NUMBER.pattern})", shown.strip()):
        if word == "...":
            pattern += r".*?"
        elif word.isspace():
            pattern += r"\s+"
        elif _NUMBER.fullmatch(word):
            pattern += f"({_NUMBER.pattern})"
            numbers.append(word)
        else:
            pattern += re.escape(word)
    match = re.fullmatch(pattern + r"\s*", printed, re.S)
    assert match, f"{where} shows\n{shown}\nbut this was printed:\n{printed}"
    for expected, got in zip(numbers, match.groups(), strict=True):
        a, b = (float(number.replace(",", "").replace("−", "-")) for number in (expected, got))
        digits = len(expected.partition(".")[2])
        near = a == b if not digits else abs(a - b) <= 0.02 * abs(a) + 10.0**-digits
        assert near, f"{where} shows {expected}, but {got} was printed:\n{printed}"


if __name__ == "__main__":
    for page in PAGES:
        for block in blocks(page):
            if block.reason is not None:
                print(f"{block}: not run, {block.reason}")
