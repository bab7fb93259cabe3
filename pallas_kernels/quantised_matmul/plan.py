"""How one product is cut up: which blocks and warps do what, and where everything lies in shared memory.

The unit of work is a chunk of a tile: 16 rows by 256 columns. A warp keeps the x of one chunk in registers and takes
that chunk of tile after tile. If a row has fewer chunks than a block has warps, several teams of warps share the tiles.
If it has more, they fall into passes: with one or two tokens a block goes over its tiles once for each; with more,
whose x is costly to prepare, each block has the chunks of one pass alone and leaves the sum of passes to its caller.

A row's result is the sum of its chunks: those of a pass as a tree, then the passes in order. Its number of columns
fixes this order alone; who computes which tile, and how many rows x has, do not enter.
"""

from dataclasses import dataclass
from functools import cached_property
from math import lcm

from pallas_kernels.quantised_matmul.formats import Format
from pallas_kernels.quantised_matmul.layout import CHUNK, ROWS, Layout

SHARED_BYTES = 226 * 1024
"""Of the 227 KiB that a block of Hopper may have; the compiler needs a little itself."""

WARPS = 16
"""In a block at most; there is one block on each multiprocessor."""

UNIT = 128
"""Columns that a warp quantises at a time, four in a lane."""

RUNS = 256 // UNIT
"""Such runs in a chunk."""

COLUMNS = 8
"""Tokens that one tensor core operation takes."""

DEPTH = 2
"""Chunks in flight for a warp, at most; more were slower on an H200."""

BARRIER_BYTES = WARPS * DEPTH * 8
"""Of the barriers on which warps await their chunks."""

TOKEN_STRIDE = 20
"""Words from one token's 16 results of a chunk to the next one's: no two lanes that store together share a bank."""


@dataclass(frozen=True)
class Plan:
    """layout: of the matrix, or of each of the two with a gate. batch: rows of x, 1 to 8. gate: "silu", "gelu" or None.
    norm, bias, residual, layer: whether those operands come. ctas: thread blocks at most. room: bytes of shared memory
    that a block has for it."""

    layout: Layout
    batch: int
    gate: str | None = None
    norm: bool = False
    bias: bool = False
    residual: bool = False
    layer: bool = False
    eps: float = 1e-6
    ctas: int = 132
    room: int = SHARED_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= COLUMNS:
            raise ValueError(f"a kernel takes 1 to {COLUMNS} rows of x, not {self.batch}")

    @property
    def fmt(self) -> Format:
        return self.layout.fmt

    # --- work -----------------------------------------------------------------------------------------------------

    @property
    def unit_tiles(self) -> int:
        """Tiles whose results meet in the epilogue: a gate and what it gates, which alternate in memory."""
        return 2 if self.gate else 1

    @property
    def units(self) -> int:
        return self.layout.tiles

    @property
    def passes(self) -> int:
        return -(-self.layout.chunks // WARPS)

    @property
    def slices(self) -> int:
        """Sets of blocks, each with the chunks of one pass, whose results are to be added; 1: blocks have whole rows.

        A gate is then the caller's, whatever the batch: one exponential for all gives all the same bits."""
        return self.passes if self.batch > 2 or self.gate else 1

    @property
    def turns(self) -> int:
        """Passes of a block."""
        return self.passes // self.slices

    @property
    def stride(self) -> int:
        """Blocks of a slice: unit u is for block u % stride."""
        return min(max(1, self.ctas // self.slices), self.units)

    @property
    def grid(self) -> int:
        return self.slices * self.stride

    @property
    def units_per_cta(self) -> int:
        """At most."""
        return -(-self.units // self.stride)

    @property
    def out_shape(self) -> tuple[int, ...]:
        """[batch, N]; with slices the sums that remain to be added, [slices, unit tiles, batch, N], and no epilogue."""
        whole = (self.batch, self.layout.rows)
        return whole if self.slices == 1 else (self.slices, self.unit_tiles, *whole)

    @property
    def group(self) -> int:
        """Warps of a team: each has one chunk of a pass."""
        return -(-self.layout.chunks // self.passes)

    @property
    def teams(self) -> int:
        """No more than have something to do: tiles to multiply, or parts of x to quantise."""
        return min(WARPS // self.group, max(self.units_per_cta * self.unit_tiles, RUNS * self.batch))

    @property
    def warps(self) -> int:
        """Of a block that work. They are the first ones."""
        return self.teams * self.group

    @property
    def has_missing_pairs(self) -> bool:
        """Whether there are pairs of blocks in the chunks of all passes that a row does not have."""
        return self.passes * self.group * CHUNK > self.layout.pairs

    @property
    def depth(self) -> int:
        """Chunks in flight for a warp, if there is room: it has no more than some for each of its tiles."""
        return min(DEPTH, -(-self.units_per_cta * self.unit_tiles // self.teams) * self.turns)

    @cached_property
    def phase_units(self) -> int:
        """Units between two epilogues: all if their partial results leave room for the ring, else what does."""
        step = lcm(self.teams, self.unit_tiles) // self.unit_tiles  # keeps all teams busy
        each = self.unit_tiles * self.tile_partial_bytes
        for stages in range(self.depth, 0, -1):
            room = self.room - self.partials_at - stages * self._stage_bytes - 128
            if self.units_per_cta * each <= room:
                return self.units_per_cta
            if room // (2 * each) >= step:
                return room // (2 * each) // step * step
        return step

    @property
    def phases(self) -> int:
        """At most."""
        return -(-self.units_per_cta // self.phase_units)

    # --- quantised x in shared memory, one chunk for each warp of a team --------------------------------------------

    @property
    def entry_words(self) -> int:
        """What goes with a block of two tokens (or two blocks of one): scales, and sums by group if they are needed."""
        return 2 + (2 * self.fmt.halves if self.has_sums else 0)

    @property
    def has_sums(self) -> bool:
        return bool(self.fmt.offset or self.fmt.min_sign)

    @property
    def entry_columns(self) -> int:
        """Entries for each block: pairs of tokens. (With one token an entry is a pair of blocks.)"""
        return -(-self.batch // 2)

    @property
    def digit_bytes(self) -> int:
        """Of a chunk."""
        return 8 * self.batch * 64

    @property
    def entry_bytes(self) -> int:
        """Of a chunk."""
        entries = 4 if self.batch == 1 else 8 * self.entry_columns
        return -(-entries * self.entry_words * 4 // 16) * 16

    @property
    def norm_runs(self) -> int:
        """Runs of UNIT columns in the chunks of all passes."""
        return self.passes * self.group * RUNS

    # --- shared memory, byte offsets ------------------------------------------------------------------------------

    @property
    def digits_at(self) -> int:
        return 0

    @property
    def entries_at(self) -> int:
        return self.digits_at + self.group * self.digit_bytes

    @property
    def sums_at(self) -> int:
        """Sums of squares by run of columns, then the factor of each row."""
        return self.entries_at + self.group * self.entry_bytes

    @property
    def barriers_at(self) -> int:
        sums = (self.norm_runs + 1) * self.batch * 4 if self.norm else 0
        return self.sums_at + -(-sums // 16) * 16

    @property
    def partials_at(self) -> int:
        return self.barriers_at + BARRIER_BYTES

    @property
    def partial_words(self) -> int:
        """Results of a chunk: 16 rows of one token; or of 8 tokens, each TOKEN_STRIDE apart."""
        return ROWS if self.batch == 1 else 40 * self.entry_columns

    @property
    def tile_partial_bytes(self) -> int:
        return self.turns * self.group * self.partial_words * 4

    @property
    def partial_bytes(self) -> int:
        """One buffer; there are two if there is more than one phase."""
        return self.phase_units * self.unit_tiles * self.tile_partial_bytes

    @property
    def ring_at(self) -> int:
        end = self.partials_at + self.partial_bytes * min(2, self.phases)
        return -(-end // 128) * 128

    @property
    def _stage_bytes(self) -> int:
        return self.teams * self.group * self.layout.chunk_bytes

    @property
    def stages(self) -> int:
        """Chunks in flight for each warp; 0 if this product does not fit."""
        return min(self.depth, max(0, self.room - self.ring_at) // self._stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return self.ring_at + self.stages * self._stage_bytes
