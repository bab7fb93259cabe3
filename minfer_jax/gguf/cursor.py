"""Little-endian reading with every length checked against the bytes that are there."""

import mmap
import struct

from minfer_jax.errors import GGUFError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# No model file is larger; a header that asks for more is corrupt rather than cut off.
IMPLAUSIBLE_SIZE = 1 << 48


def shown(name: str | bytes, limit: int = 80) -> str:
    """Return a name from a file in quotes, escaped and shortened so that a message stays one short line."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")


def too_short(source: str, size: int, needed: int, what: str, *, at_least: bool) -> GGUFError:
    """Return the error for a file of `size` bytes in which `what` ends at byte `needed`."""
    if needed >= IMPLAUSIBLE_SIZE:
        return GGUFError(f"{source}: {what} would end at byte {needed} of {size}; the file is corrupt")
    bound = "at least " if at_least else ""
    return GGUFError(
        f"{source}: the file has {size} bytes but should have {bound}{needed} ({what} ends there); "
        "it was cut off or is corrupt: download it again"
    )


class Cursor:
    """A position in a mapped file. No read passes the end, and nothing is allocated before that is known."""

    __slots__ = ("buffer", "end", "position", "source")

    def __init__(self, buffer: mmap.mmap, source: str, position: int = 0) -> None:
        self.buffer = buffer
        self.source = source
        self.position = position
        self.end = len(buffer)

    def advance(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they start."""
        start = self.position
        stop = start + count
        if stop > self.end:
            raise too_short(self.source, self.end, stop, what, at_least=True)
        self.position = stop
        return start

    def room(self, count: int, least_size: int, what: str) -> None:
        """Refuse a count of entries, of `least_size` bytes or more each, that cannot fit in the rest."""
        stop = self.position + count * least_size
        if stop > self.end:
            raise too_short(self.source, self.end, stop, f"{what} ({count} claimed)", at_least=True)

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return _U32.unpack_from(self.buffer, self.advance(4, what))[0]

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return _U64.unpack_from(self.buffer, self.advance(8, what))[0]

    def scalar(self, layout: struct.Struct, what: str) -> int | float:
        """Read one number of the given layout."""
        return layout.unpack_from(self.buffer, self.advance(layout.size, what))[0]

    def string(self, what: str) -> bytes:
        """Read a string: its length in 8 bytes, then its bytes."""
        length = self.u64(what)
        start = self.advance(length, what)
        return self.buffer[start : self.position]

    def strings(self, count: int, what: str) -> list[bytes]:
        """Read `count` strings, in one tight loop: a vocabulary has hundreds of thousands."""
        self.room(count, _U64.size, what)
        buffer, position, end = self.buffer, self.position, self.end
        unpack = _U64.unpack_from
        found: list[bytes] = []
        append = found.append
        for index in range(count):
            start = position + 8
            if start > end:
                raise too_short(self.source, end, start, f"{what}[{index}]", at_least=True)
            position = start + unpack(buffer, position)[0]
            if position > end:
                raise too_short(self.source, end, position, f"{what}[{index}]", at_least=True)
            append(buffer[start:position])
        self.position = position
        return found
