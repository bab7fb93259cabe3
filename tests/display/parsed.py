"""HTML as a browser would read it, by the standard library's parser: what stands in it, and whether it is whole."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_ALLOWED = {"div", "b", "small", "table", "thead", "tbody", "tr", "th", "td", "ruby", "rt", "span"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: "list[Element | str]" = field(default_factory=list)

    def all(self, *tags: str) -> "list[Element]":
        """Elements below this one with one of these tags, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                found += [child] if child.tag in tags else []
                found += child.all(*tags)
        return found

    def text(self, *, without: tuple[str, ...] = ()) -> str:
        return "".join(
            child if isinstance(child, str) else child.text(without=without)
            for child in self.children
            if isinstance(child, str) or child.tag not in without
        )

    def table(self) -> list[list[str]]:
        return [[cell.text() for cell in row.all("th", "td")] for row in self.all("tr")]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ALLOWED, tag
        assert all(name in ("style", "title") for name, _ in attrs), attrs
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def parse(html: str) -> Element:
    """The elements of a display. It fails on what is not closed in order, and on tags and attributes that displays have
    no use for, which only text that was not escaped could bring."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert len(parser.open) == 1
    return parser.open[0]
