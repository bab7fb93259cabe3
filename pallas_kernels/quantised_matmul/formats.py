"""The formats as data. The kernel, the layout and the reference read this table; none of them names a format.

A weight is ``value(code) * (d * scale) + min`` with value(code) = codebook[code] or code - offset, ``d`` (and ``dmin``)
one float16 per block and ``scale`` (and ``min``) one small integer per group of a block of 256.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """bits: of a code. block: weights that share d. group: weights that share a scale. min_sign: +1 where the block
    stores the minimum, -1 where it stores what is subtracted, 0 without a minimum. signed_scales: int8, not uint8.
    exponent_scale: d is one byte, the MX exponent."""

    name: str
    bits: int
    block: int
    group: int = 32
    offset: int = 0
    codebook: tuple[int, ...] | None = None
    min_sign: int = 0
    signed_scales: bool = False
    exponent_scale: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits of a code by plane, low bits first: powers of two, so that no code straddles a byte."""
        return {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}[self.bits]

    @property
    def signed(self) -> bool:
        """Whether what the tensor cores multiply are signed bytes."""
        return self.bits == 8 or self.codebook is not None

    @property
    def has_scales(self) -> bool:
        return self.block == 256

    @property
    def halves(self) -> int:
        """Groups in 32 neighbours."""
        return 32 // self.group


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("Q4_0", 4, 32, offset=8),
        Format("Q4_1", 4, 32, min_sign=1),
        Format("Q5_0", 5, 32, offset=16),
        Format("Q5_1", 5, 32, min_sign=1),
        Format("Q8_0", 8, 32),
        Format("Q2_K", 2, 256, group=16, min_sign=-1),
        Format("Q3_K", 3, 256, group=16, offset=4, signed_scales=True),
        Format("Q4_K", 4, 256, min_sign=-1),
        Format("Q5_K", 5, 256, min_sign=-1),
        Format("Q6_K", 6, 256, group=16, offset=32, signed_scales=True),
        Format("IQ4_NL", 4, 32, codebook=_IQ4),
        Format("IQ4_XS", 4, 256, codebook=_IQ4, signed_scales=True),
        Format("MXFP4", 4, 32, codebook=_E2M1_DOUBLED, exponent_scale=True),
    )
}
"""By the name that GGUF gives them."""
