"""An architecture is data over shared blocks: this is the data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """How one family differs from the common decoder.

    requires: optional layer tensors (field names of ``params.Layer``) without which the file is broken.
    pair_ordered_qk: rows of Q and K come in rotation pairs and are re-ordered at load.
    full_every: with a sliding window, every n-th layer sees everything (0: no layer does).
    local_rope_base: the rope base of sliding-window layers where it differs from the model's.
    *_softcap, default_window, full_every, local_rope_base: what holds when the file has no key for it.
    width_scaled_depth: the size of the family (in layers) whose attention scales by width per head instead of by head
        size; no metadata key says so. 0: none.
    """

    name: str
    activation: str = "silu"
    requires: tuple[str, ...] = ()
    pair_ordered_qk: bool = False
    full_every: int = 0
    default_window: int = 0
    local_rope_base: float | None = None
    scale_embedding: bool = False
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    width_scaled_depth: int = 0
