"""What a model is, as one frozen value: static under jit, hashable, readable from GGUF metadata alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding as data. Half-split pairs everywhere (pair-ordered files are re-ordered at load).

    dim: how many of a head's dimensions are rotated. bases: one per table; the first is the model's own, a second one
    belongs to sliding-window layers. scaling ("none", "linear", "yarn", "longrope"), factor (context extension) and
    original_context (length before extension) apply to the first table only. attention_factor multiplies cos and
    sin, on top of the factor that YaRN brings itself.
    """

    dim: int
    bases: tuple[float, ...]
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Config:
    """Shape and arithmetic of a decoder-only transformer.

    arch: the file's ``general.architecture``. d_model: width of the residual stream. d_ff: width of the gated
        feed-forward. n_kv_heads: heads of keys and values, each shared by n_heads / n_kv_heads queries. head_dim: of
        all heads. rms_eps: of every RMSNorm. activation: "silu", or "gelu" in its tanh form.
    attention_scale: what scores are multiplied by. embedding_scale: what embeddings are multiplied by.
    windows: per layer, how many positions back a token may look, itself included (0: no limit).
    rope_tables: per layer, which of ``rope.bases`` rotates it. n_ctx: the window that scoring and generation use, at
    most n_ctx_train unless the caller asked for more. attention_softcap, final_softcap: of attention scores and of
    logits, 0.0 is off.
    """

    arch: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    n_ctx: int
    n_ctx_train: int
    rms_eps: float
    rope: Rope
    windows: tuple[int, ...]
    rope_tables: tuple[int, ...]
    activation: str
    attention_scale: float
    embedding_scale: float = 1.0
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
