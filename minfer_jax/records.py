"""What all results have in common."""

from dataclasses import asdict
from typing import Any


class Record:
    """Base of the dataclasses that results are."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values, ready for JSON."""
        return asdict(self)  # pyright: ignore[reportArgumentType]
