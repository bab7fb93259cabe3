"""From the words of codes to operands of the tensor cores, whatever the format's planes are."""

from pallas_kernels import lanes as ln
from pallas_kernels.lanes import Value
from pallas_kernels.quantised_matmul.formats import Format


def fragments(fmt: Format, lane: Value, address: Value) -> list[Value]:
    """The 8 fragments of a pair of blocks at a shared address: (block, row half, column half)."""
    pieces: list[list[Value]] = [[] for _ in range(8)]
    at, low = 0, 0
    for width in fmt.widths:
        words = []
        for _ in range(-(-width // 4)):
            n = min(width, 4)
            words += ln.load_shared(ln.add(address, ln.mul(lane, 4 * n)), n, at=at)
            at += 128 * n
        if fmt.codebook is not None:
            return [fragment for word in words for fragment in _look_up(fmt.codebook, word)]
        for f in range(8):
            word = words[f * width // 8]
            if width < 8:
                shifted = ln.shift_right(word, f * width % 8 - low)
                word = ln.land(shifted, (((1 << width) - 1) << low) * 0x01010101)
            pieces[f].append(word)
        low += width
    return [piece[0] if len(piece) == 1 else ln.lor(*piece) for piece in pieces]


def _look_up(codebook: tuple[int, ...], word: Value) -> list[Value]:
    """Eight codes of 4 bits -> twice four bytes of the codebook; a byte permutation looks up 3 bits at a time."""
    table = [int.from_bytes(bytes(v & 255 for v in codebook[i : i + 4]), "little") for i in range(0, 16, 4)]
    table = [ln.integer(entry) for entry in table]
    index = ln.land(word, 0x77777777)
    upper = ln.lor(ln.shift_right(ln.land(word, 0x88888888), 1), 0x32103210)
    found = []
    for shift in (0, 16):
        low, high = (ln.permute(table[i], table[i + 1], ln.shift_right(index, shift)) for i in (0, 2))
        found.append(ln.permute(low, high, ln.shift_right(upper, shift)))
    return found


def integer_product(fmt: Format, sums: list[list[list[Value]]], a: list[Value], digits: list[Value]) -> None:
    """sums[group][digit] += a block: a is (row half, column half), digits (high, low) by column half."""
    if fmt.halves == 1:
        operands = [(0, [a[0], a[2], a[1], a[3]], slice(0, 2))]
    else:
        operands = [(0, [a[0], a[2]], slice(0, 1)), (1, [a[1], a[3]], slice(1, 2))]
    for group, rows, columns in operands:
        for digit in (0, 1):
            x = digits[2 * digit : 2 * digit + 2][columns]
            sums[group][digit] = ln.integer_mma(sums[group][digit], rows, x, (fmt.signed, digit == 0))
