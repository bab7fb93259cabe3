"""Ids to text one by one, never cutting a character."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Turns ids into text as they come: a piece is held back until its UTF-8 character is complete.

    The pieces joined are the bytes of all tokens decoded at once; bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Return the characters that this id completes, often "" in the middle of one. Raises ArgumentError."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """Return what is left at the end: "", or a single U+FFFD for the bytes of an incomplete character."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
