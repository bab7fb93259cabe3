"""Deterministic damage to GGUF files, for every test that must survive it."""

import random
import struct
from collections.abc import Iterator, Mapping

_EXTREMES_64 = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1)
_EXTREMES_32 = (0, 1, 2, 9, 31, 250, 2**16, 2**31 - 1, 2**31, 2**32 - 1)


def mutated_files(
    sources: Mapping[str, bytes], count: int, *, seed: int = 0, header_bytes: int = 1 << 12
) -> Iterator[tuple[str, bytes]]:
    """Yield `count` damaged files as (label, content), the same ones for the same arguments.

    Each is one of `sources` after one to three steps of: flipped bytes, a cut end, an extreme 64-bit or 32-bit
    number spliced over a header field, two chunks swapped, a chunk doubled, a chunk removed. Damage falls on the
    first `header_bytes` three times out of four, because that is where the decisions are. The label says what
    was done, so that a failure can be repeated from it.
    """
    rng = random.Random(seed)
    names = sorted(sources)
    for index in range(count):
        name = names[index % len(names)]
        content = bytearray(sources[name])
        steps = []
        for _ in range(rng.randint(1, 3)):
            reach = max(16, min(len(content), header_bytes) if rng.random() < 0.75 else len(content))
            steps.append(rng.choice(_STEPS)(rng, content, reach))
        yield f"seed {seed}, file {index} ({name}): {'; '.join(steps)}", bytes(content)


def _flip(rng: random.Random, content: bytearray, reach: int) -> str:
    places = [rng.randrange(reach) for _ in range(rng.randint(1, 8))]
    for place in places:
        if place < len(content):
            content[place] ^= rng.randrange(1, 256)
    return f"flip {places}"


def _cut(rng: random.Random, content: bytearray, reach: int) -> str:
    place = rng.randrange(reach)
    del content[place:]
    return f"cut at {place}"


def _extreme_64(rng: random.Random, content: bytearray, reach: int) -> str:
    # Lengths, counts, dimensions and offsets are small 64-bit numbers: find where one stands.
    places = [
        p for p in range(4, min(reach, len(content) - 8)) if int.from_bytes(content[p : p + 8], "little") < 1 << 16
    ]
    place = rng.choice(places) if places else 8
    value = rng.choice(_EXTREMES_64)
    content[place : place + 8] = struct.pack("<Q", value)
    return f"64-bit {value} at {place}"


def _extreme_32(rng: random.Random, content: bytearray, reach: int) -> str:
    place, value = rng.randrange(4, reach), rng.choice(_EXTREMES_32)
    content[place : place + 4] = struct.pack("<I", value)
    return f"32-bit {value} at {place}"


def _swap(rng: random.Random, content: bytearray, reach: int) -> str:
    size = rng.randint(1, 64)
    a, b = rng.randrange(reach), rng.randrange(reach)
    first, second = content[a : a + size], content[b : b + size]
    content[a : a + size], content[b : b + size] = second, first
    return f"swap {size} bytes at {a} and {b}"


def _double(rng: random.Random, content: bytearray, reach: int) -> str:
    size, a, b = rng.randint(1, 256), rng.randrange(reach), rng.randrange(reach)
    content[b:b] = content[a : a + size]
    return f"insert at {b} the {size} bytes of {a}"


def _remove(rng: random.Random, content: bytearray, reach: int) -> str:
    size, place = rng.randint(1, 64), rng.randrange(reach)
    del content[place : place + size]
    return f"remove {size} bytes at {place}"


_STEPS = (_flip, _cut, _extreme_64, _extreme_64, _extreme_32, _swap, _double, _remove)
