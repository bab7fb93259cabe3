"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Cuts a text at the stop string that starts first, whatever the pieces it arrives in.

    Of several stop strings the match that begins earliest in the text counts, as ``min(text.find(s) ...)`` on the
    finished text would say. So a complete match waits while an earlier, longer one may still become complete.
    Text that may turn out to belong to a stop string is held back; nothing of a stop string is ever let out. Empty
    stop strings are ignored.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(s for s in stops if s))
        self._held = ""
        self.matched: str | None = None
        """The stop string found; the text has ended before it."""

    def push(self, piece: str) -> str:
        """Take the next piece of text, give what is certain to stand before any stop string."""
        if self.matched is not None:
            return ""
        self._held += piece
        match = self._first_match()
        pending = self._first_pending()
        if match is not None and match[0] <= pending:
            return self._cut(*match)
        out, self._held = self._held[:pending], self._held[pending:]
        return out

    def finish(self) -> str:
        """The text has ended: give what was held back, up to a complete match."""
        if self.matched is not None:
            return ""
        match = self._first_match()
        if match is not None:
            return self._cut(*match)
        out, self._held = self._held, ""
        return out

    def _cut(self, start: int, stop: str) -> str:
        out, self._held = self._held[:start], ""
        self.matched = stop
        return out

    def _first_match(self) -> tuple[int, str] | None:
        found = ((self._held.find(s), s) for s in self._stops)
        return min(((start, s) for start, s in found if start >= 0), key=lambda m: m[0], default=None)

    def _first_pending(self) -> int:
        """Where the longest end of the text begins that is the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for start in range(max(0, len(self._held) - longest), len(self._held)):
            end = self._held[start:]
            if any(len(s) > len(end) and s.startswith(end) for s in self._stops):
                return start
        return len(self._held)
