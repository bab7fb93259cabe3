"""Of the API reference: the docstrings of this project as Markdown.

They name parameters, fields and what is returned in running text: ``tokens: [B, T] int32. positions: ..``. Where such a
name is one of the signature's or of the class's, it begins an entry of a list. Roles (:func:`score`) become code.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:func|class|mod|meth):`[.~]*([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once, when its object has been read."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        _rewrite(func, {parameter.name.lstrip("*") for parameter in func.parameters})

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        _rewrite(attr, set())

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        names = {name for name, member in cls.members.items() if member.is_attribute}
        if (init := cls.members.get("__init__")) is not None and init.is_function:
            names |= {parameter.name for parameter in init.parameters}
        _rewrite(cls, names - {"self"})


def _rewrite(found: griffe.Object, names: set[str]) -> None:
    if found.docstring is None:
        return
    text = _ROLE.sub(r"`\1`", found.docstring.value)
    text = re.sub(r"^(Attributes|Args|Raises|Returns):\n", r"\1:\n\n", text, flags=re.M)
    paragraphs = re.split(r"\n\s*\n|\n(?=Raises |Returns )", text)
    found.docstring.value = "\n\n".join(_as_list(paragraph, names) for paragraph in paragraphs)


def _as_list(paragraph: str, names: set[str]) -> str:
    """A paragraph with an entry for each name, or each few with commas, that stands in front of a colon."""
    lines = " ".join(line.strip() for line in paragraph.splitlines())
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not names or not re.search(rf"(?:^|[.;)] )(?:{one})(?:, (?:{one}))*: ", lines):
        return lines
    entry = re.compile(rf"(?:^|(?<=[.;)]) )((?:{one})(?:, (?:{one}))*): ")
    return entry.sub(lambda m: "\n\n- " + ", ".join(f"**{name}**" for name in m[1].split(", ")) + ": ", lines).strip()
