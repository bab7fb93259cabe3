"""Float32 numbers in device memory, and how blocks of one launch hand them to each other.

Who reads or writes need not know which of the two it is: :class:`Numbers` are of other launches, :class:`Mail` is of
this one. Mail is pairs (number, tag): a reader waits until a number has the tag that it expects. No barrier stands
between blocks then, and a number is there as soon as its own writer has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value


class Sink(Protocol):
    """Where results go."""

    def store(self, index: Value, value: Value) -> None: ...


@dataclass(frozen=True)
class Numbers:
    """address: i64, of float32 that nobody writes while this launch reads them."""

    address: Value

    def load(self, places: Sequence[tuple[Value, Value]], n: int) -> list[list[Value]]:
        """n (1 or 4) neighbours from each (index, valid); zeros where valid (i1) is false."""
        return [ln.load_global(ln.offset(self.address, ln.mul(index, 4)), n, valid) for index, valid in places]

    def store(self, index: Value, value: Value) -> None:
        ln.store_global(ln.offset(self.address, ln.mul(index, 4)), value)


@dataclass(frozen=True)
class Mail:
    """address: i64, of pairs of a float32 and a tag. tag: what numbers of this round carry, i32.

    All blocks must be resident at once. An address may be written again, with another tag, by who depends on all its
    readers.
    """

    address: Value
    tag: Value

    def load(self, places: Sequence[tuple[Value, Value]], n: int) -> list[list[Value]]:
        """As :meth:`Numbers.load`, once they are there."""
        addresses = [ln.offset(self.address, ln.mul(index, 8)) for index, _ in places]
        return ln.load_mail(addresses, [valid for _, valid in places], n, self.tag)

    def store(self, index: Value, value: Value) -> None:
        ln.store_mail(ln.offset(self.address, ln.mul(index, 8)), value, self.tag)
