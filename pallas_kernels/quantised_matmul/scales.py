"""The factors and minimums of weights: of each group of a pair of blocks, rows g and g + 8 of a lane."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.layout import CHUNK
from pallas_kernels.quantised_matmul.place import Place
from pallas_kernels.quantised_matmul.plan import Plan

Values = Callable[[int, int, int], Value]
"""(row half, block, group of the block) -> float32; each is computed once."""

_BYTE = 8388608.0  # float32 whose lowest byte of mantissa counts units
_BYTE_BITS = 0x4B000000


@dataclass
class Blocks:
    """d, and dmin with its sign, of rows g and g + 8 of a chunk, for formats with blocks of 256."""

    d: list[Value]
    dmin: list[Value]

    @classmethod
    def load(cls, plan: Plan, place: Place, slot: Value) -> "Blocks | None":
        n = plan.layout.row_block_bytes // 4
        if n == 0:
            return None
        address = ln.add(slot, ln.mul(ln.shift_right(place.lane, 2), 4 * n))
        words = ln.load_shared(address, n, at=CHUNK * plan.layout.pair_bytes)
        dmin = [ln.fmul(m, ln.real(plan.fmt.min_sign)) for m in ln.halves(words[1])] if n == 2 else []
        return cls(ln.halves(words[0]), dmin)


@dataclass
class Scales:
    """factor: d * scale; minimum: with its sign."""

    factor: Values
    minimum: Values

    @classmethod
    def load(cls, plan: Plan, place: Place, address: Value, blocks: Blocks | None, valid: Value | None) -> "Scales":
        """Of the pair at a shared address. Zeros where valid (i1) is false: what lies there is of another chunk."""
        layout, fmt = plan.layout, plan.fmt
        n = layout.row_scale_bytes // 4
        row = ln.add(address, ln.mul(ln.shift_right(place.lane, 2), 4 * n))
        words = ln.load_shared(row, n, at=layout.code_bytes)
        half = n // 2 if fmt.min_sign else n
        if blocks is None:
            convert = ln.brain_halves if fmt.exponent_scale else ln.halves
            values = [convert(word) for word in words]
            factor: Values = lambda row, block, _: values[row][block]  # noqa: E731
            minimum: Values = lambda row, block, _: values[half + row][block]  # noqa: E731
        else:
            factor = _integers(words[:half], blocks.d, fmt.halves, fmt.signed_scales)
            minimum = _integers(words[half:], blocks.dmin, fmt.halves, False)
        return cls(_once(factor, valid), _once(minimum, valid))


def _once(values: Values, valid: Value | None) -> Values:
    if valid is None:
        return cache(values)
    return cache(lambda *at: ln.select(valid, values(*at), ln.real(0.0)))


def _integers(words: list[Value], d: list[Value], halves: int, signed: bool) -> Values:
    """d times bytes, exactly: a byte becomes a float32 by being put in the mantissa of _BYTE."""
    if signed:
        words = [ln.xor(word, 0x80808080) for word in words]
    bias = [ln.fmul(v, ln.real(-_BYTE)) for v in d]

    def value(row: int, block: int, group: int) -> Value:
        index = (2 * row + block) * halves + group
        byte = ln.as_float(ln.permute(words[index // 4], ln.integer(_BYTE_BITS), 0x7440 | index % 4))
        if signed:  # d times the larger bias would not be exact
            return ln.fmul(d[row], ln.fsub(byte, ln.real(_BYTE + 128)))
        return ln.fma(d[row], byte, bias[row])

    return value
