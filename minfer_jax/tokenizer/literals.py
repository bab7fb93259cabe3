"""Finding tokens that stand literally in a text: control tokens, and the ones a model's makers defined by hand."""

import re
from collections.abc import Iterable, Iterator


class LiteralMatcher:
    """Finds the leftmost, then longest, of many fixed strings in one linear scan.

    literals: (text, id) pairs; empty texts never match, and of equal texts the first counts.
    strip_after: ids that swallow the white space behind them.

    The pattern is a trie written as one regular expression: thousands of alternatives cost no more than a few.
    """

    def __init__(self, literals: Iterable[tuple[str, int]], strip_after: Iterable[int] = ()) -> None:
        self._ids: dict[str, int] = {}
        for text, token in literals:
            if text:
                self._ids.setdefault(text, token)
        self._strip_after = frozenset(strip_after)
        self._pattern = re.compile(_trie_pattern(self._ids)) if self._ids else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the ids of the literals and the non-empty stretches of text between them, in order."""
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() < start:  # its beginning was swallowed as white space
                continue
            if match.start() > start:
                yield text[start : match.start()]
            token = self._ids[match.group()]
            yield token
            start = match.end()
            if token in self._strip_after:
                start = len(text) - len(text[start:].lstrip())
        if start < len(text):
            yield text[start:]

    def replace_first_characters(self, text: str, stand_in: dict[str, str]) -> str:
        """Put ``stand_in[c]`` for the first character c of every literal in the text, until none is left."""
        while self._pattern and self._pattern.search(text):
            text = self._pattern.sub(lambda match: stand_in[match.group()[0]] + match.group()[1:], text)
        return text

    def first_characters(self) -> set[str]:
        """Return the characters that literals begin with."""
        return {text[0] for text in self._ids}


def _trie_pattern(texts: Iterable[str]) -> str:
    root: dict = {}
    for text in texts:
        node = root
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    return _node_pattern(root)


def _node_pattern(node: dict) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:  # a chain without branches needs no group
        (character, node), *_ = node.items()
        prefix += re.escape(character)
    branches = [re.escape(c) + _node_pattern(child) for c, child in node.items() if c]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
