"""How the layers of a decode step are cut up: the plan of each product, and where everything lies."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from pallas_kernels.decode_attention.kernel import SPLIT
from pallas_kernels.decode_attention.kernel import Plan as AttentionPlan
from pallas_kernels.quantised_matmul.layout import Layout
from pallas_kernels.quantised_matmul.plan import BARRIER_BYTES, SHARED_BYTES, WARPS
from pallas_kernels.quantised_matmul.plan import Plan as Product

TEAMS = 2
"""That attend in a block, each of half its threads."""


@dataclass(frozen=True)
class Plan:
    """qkv: one matrix or several, one below the other. biases: whether products have one, in the order of ``products``.
    heads, kv_heads, dim, half, length, scale, norms: as attention's plan has them. ctas: blocks, which all run at once.
    """

    qkv: tuple[Layout, ...]
    o: Layout
    gate_up: Layout
    down: Layout
    biases: tuple[bool, ...]
    activation: str
    eps: float
    heads: int
    kv_heads: int
    dim: int
    half: int
    length: int
    scale: float
    norms: bool
    layers: int
    ctas: int = 132

    @cached_property
    def attention(self) -> AttentionPlan:
        splits = -(-self.length // SPLIT)
        eps = self.eps if self.norms else None
        return AttentionPlan(1, self.heads, self.kv_heads, self.dim, self.half, self.length, splits, self.scale, eps)

    @cached_property
    def products(self) -> list[Product]:
        """In the order in which a layer needs them: qkv, o, gate and up, down."""
        rooms = self.rooms
        return [replace(product, room=rooms[i % 2]) for i, product in enumerate(self._alone)]

    @cached_property
    def _alone(self) -> list[Product]:
        """The same if each had all shared memory."""
        into, out = {"norm": True}, {"residual": True}
        options: list[dict[str, Any]] = [into] * len(self.qkv) + [out, into | {"gate": self.activation}, out]
        layouts = (*self.qkv, self.o, self.gate_up, self.down)
        return [
            Product(layout, 1, bias=bias, layer=True, eps=self.eps, ctas=self.ctas, **more)
            for layout, bias, more in zip(layouts, self.biases, options, strict=True)
        ]

    @property
    def fits(self) -> bool:
        """Whether there is a kernel for it: every product is a block's own from end to end, and there is room."""
        products = self.products
        whole = all(p.slices == 1 and (p.passes == 1 or not p.norm) for p in products)
        # The rooms take turns from layer to layer as well.
        return whole and len(products) % 2 == 0 and all(p.stages >= 1 for p in products)

    @property
    def first_rows(self) -> list[int]:
        """Where each matrix of qkv begins."""
        return list(accumulate((layout.rows for layout in self.qkv), initial=0))

    @property
    def first_ctas(self) -> list[int]:
        """The block that has the first rows of each product. Blocks take turns, so that those that did not end the last
        step are ready for the next one."""
        used = list(accumulate((product.units for product in self.products[: len(self.qkv)]), initial=0))
        o, gate_up, down = (self.ctas - product.stride for product in self.products[len(self.qkv) :])
        return [start % self.ctas for start in used[:-1]] + [o, gate_up, down]

    @property
    def attention_cta(self) -> int:
        """The block that has the first head."""
        return sum(product.units for product in self.products[: len(self.qkv)]) % self.ctas

    # --- mail: numbers that blocks send each other ------------------------------------------------------------------

    @cached_property
    def mail_at(self) -> dict[str, int]:
        """Where each kind begins: the residual stream before a layer and in its middle, projections, heads, what is
        between the products of the FFN, and splits of heads; "end"."""
        sizes = {
            "x": self.down.rows,
            "middle": self.o.rows,
            "qkv": self.first_rows[-1],
            "heads": self.heads * self.dim,
            "ffn": self.gate_up.rows,
            "splits": self.heads * self.attention.splits * (self.dim + 2),
        }
        # Pairs of numbers are read together, and four of them are.
        starts = accumulate((-(-size // 4) * 4 for size in sizes.values()), initial=0)
        return dict(zip([*sizes, "end"], starts, strict=True))

    # --- shared memory: two rooms in which products take turns, then attention's, then barriers -----------------------

    @property
    def attention_bytes(self) -> int:
        """Of a team."""
        return -(-self.attention.shared_bytes // 128) * 128

    @cached_property
    def rooms(self) -> tuple[int, int]:
        """Bytes of each: as much as its products would like, if both can have it, else half."""
        every = SHARED_BYTES - TEAMS * self.attention_bytes - len(self._alone) * BARRIER_BYTES
        wanted = [max(product.shared_bytes + 256 for product in self._alone[i::2]) for i in (0, 1)]
        first = wanted[0] if sum(wanted) <= every else every // 2
        first = -(-first // 128) * 128
        return first, (every - first) // 128 * 128

    @property
    def attention_at(self) -> int:
        return sum(self.rooms)

    @property
    def barriers_at(self) -> int:
        return self.attention_at + TEAMS * self.attention_bytes

    @property
    def shared_bytes(self) -> int:
        return self.barriers_at + len(self._alone) * BARRIER_BYTES

    @property
    def warpgroups(self) -> int:
        return WARPS // 4
