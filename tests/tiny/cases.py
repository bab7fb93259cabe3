"""The tiny models: one per architecture and per rule that separates one reading of a file from another.

A case names everything a file holds; two cases with the same `weights` hold the same numbers, so that their
logits differ by the one rule that sets them apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as T

from .vocab import Vocab, byte_bpe, sentencepiece

GPT2, QWEN, SPM = byte_bpe("gpt-2"), byte_bpe("qwen2"), sentencepiece()


@dataclass(frozen=True)
class Case:
    """Shape, metadata and tensor types of one tiny file.

    `extra` holds metadata below the architecture's name, written as given; `rope_tensors` holds rope
    divisors by tensor name; `types` maps the end of a tensor's name to the quantisation types it takes,
    layer by layer; `post_norms` is the mean weight of the norms after attention and after the feed-forward
    part. The latter is small because llama.cpp rounds GELU to 16 bits: that must not drown what the oracle
    is to show.
    """

    arch: str
    weights: str
    vocab: Vocab = GPT2
    n_layers: int = 3
    d_model: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    d_ff: int = 96
    context: int = 256
    rope_base: float = 10000.0
    eps: float = 1e-5
    tied: bool = True
    explicit_head_dim: bool = False
    fused: bool = False
    qk_norm: bool = False
    post_norms: tuple[float, float] | None = None
    biases: tuple[str, ...] = ()
    bias_std: float = 0.4
    extra: Mapping[str, Any] = field(default_factory=dict)
    rope_tensors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    types: Mapping[str, tuple[T, ...]] = field(default_factory=dict)

    def tokens(self, length: int = 40) -> list[int]:
        """The fixed token ids of this case: ordinary ones, after a BOS where the vocabulary asks for one."""
        first = 3 if self.vocab is SPM else 0
        ids = np.random.RandomState(20).randint(first, self.vocab.size - 3, size=length).tolist()
        return [self.vocab.bos, *ids[1:]] if self.vocab.add_bos else ids


LLAMA = Case("llama", "llama")
MISTRAL = Case("llama", "mistral", SPM, head_dim=24, tied=False, explicit_head_dim=True, rope_base=1e6)
QWEN2 = Case("qwen2", "qwen2", QWEN, biases=("attn_q", "attn_k", "attn_v"), rope_base=1e6, eps=1e-6)
QWEN3 = Case("qwen3", "qwen3", QWEN, head_dim=32, explicit_head_dim=True, qk_norm=True, rope_base=1e6, eps=1e-6)
GEMMA2 = Case(
    "gemma2",
    "gemma2",
    SPM,
    n_layers=4,
    d_model=32,
    d_ff=64,
    explicit_head_dim=True,
    post_norms=(1.0, 0.15),
    eps=1e-6,
    extra={"attention.sliding_window": 8, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
)
GEMMA3 = Case(
    "gemma3",
    "gemma3",
    SPM,
    n_layers=8,
    d_model=32,
    d_ff=64,
    explicit_head_dim=True,
    qk_norm=True,
    post_norms=(1.0, 0.15),
    rope_base=1e6,
    eps=1e-6,
    extra={"attention.sliding_window": 8},
)
# Real phi3 files carry the original context and the factors, but no rope.scaling.type.
PHI3 = Case(
    "phi3",
    "phi3",
    SPM,
    tied=False,
    fused=True,
    extra={"rope.dimension_count": 16, "rope.scaling.original_context_length": 256},
)
LONGROPE = replace(
    PHI3,
    weights="longrope",
    head_dim=16,
    context=512,
    tied=True,
    rope_tensors={
        "rope_factors_long": (1.5, 2.0, 4.0, 7.5, 12.0, 20.0),
        "rope_factors_short": (1.0, 1.05, 1.1, 1.25, 1.5, 2.0),
    },
    extra={
        "rope.dimension_count": 12,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.attn_factor": 1.25,
    },
)
LEGACY = Case(
    "llama",
    "quant-legacy",
    n_layers=6,
    tied=False,
    d_ff=128,
    types={
        "token_embd": (T.Q8_0,),
        "output": (T.Q5_1,),
        "attn_q": (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.F16),
        "attn_k": (T.Q8_0, T.Q4_0, T.BF16),
        "attn_v": (T.Q5_0, T.Q8_0),
        "attn_output": (T.Q4_1, T.Q4_0),
        "ffn_gate": (T.Q4_0, T.F16),
        "ffn_up": (T.Q5_1, T.Q4_1, T.BF16),
        "ffn_down": (T.Q8_0, T.Q5_0),
    },
)
K_QUANTS = replace(
    QWEN2,
    weights="quant-k",
    d_model=256,
    d_ff=256,
    head_dim=64,
    types={
        "token_embd": (T.Q6_K,),
        "attn_q": (T.Q4_K, T.Q5_K, T.Q3_K),
        "attn_k": (T.Q4_K, T.Q2_K, T.Q5_0),
        "attn_v": (T.Q6_K, T.Q8_0, T.Q4_K),
        "attn_output": (T.Q4_K, T.Q3_K, T.Q2_K),
        "ffn_gate": (T.Q4_K, T.Q5_K),
        "ffn_up": (T.Q4_K, T.Q2_K),
        "ffn_down": (T.Q6_K, T.Q4_K, T.Q3_K),
    },
)
I_QUANTS = replace(
    QWEN3,
    weights="quant-i",
    d_model=256,
    d_ff=256,
    n_layers=2,
    types={
        "token_embd": (T.Q8_0,),
        "attn_q": (T.IQ4_XS,),
        "attn_k": (T.IQ4_NL, T.MXFP4),
        "attn_v": (T.MXFP4, T.IQ4_XS),
        "attn_output": (T.IQ4_NL, T.MXFP4),
        "ffn_gate": (T.IQ4_XS, T.IQ4_NL),
        "ffn_up": (T.MXFP4, T.IQ4_XS),
        "ffn_down": (T.IQ4_NL, T.IQ4_XS),
    },
)


def _with(case: Case, extra: Mapping[str, Any], **changes: Any) -> Case:
    return replace(case, extra={**case.extra, **extra}, **changes)


# The 27b models, known by their number of layers, scale attention by width / heads and not by the head size.
_DEEP: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_kv_heads": 1, "d_ff": 16, "post_norms": (0.4, 0.05)}
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}

CASES: dict[str, Case] = {
    "llama": LLAMA,
    "llama-linear": _with(LLAMA, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "llama-yarn": _with(LLAMA, _YARN | {"rope.scaling.original_context_length": 16}, rope_base=50.0),
    "llama-yarn-2048": _with(LLAMA, _YARN | {"rope.scaling.original_context_length": 2048}, context=8192),
    "llama-rope-freqs": replace(LLAMA, rope_tensors={"rope_freqs": (1.0, 1.0, 1.0, 1.3, 2.2, 5.0, 8.0, 8.0)}),
    "llama-biases": replace(
        LLAMA,
        n_layers=2,
        biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    ),
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen2-untied": replace(QWEN2, weights="qwen2-untied", tied=False),
    "qwen2-yarn": _with(QWEN2, _YARN | {"rope.scaling.original_context_length": 64}),
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma2-27b": replace(GEMMA2, weights="gemma2-27b", n_layers=46, **_DEEP),
    "gemma3": GEMMA3,
    "gemma3-linear": _with(GEMMA3, {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma3-pattern": _with(
        GEMMA3,
        {"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 500.0, "final_logit_softcapping": 5.0},
        weights="gemma3-pattern",
        n_layers=4,
        tied=False,
    ),
    "gemma3-27b": replace(GEMMA3, weights="gemma3-27b", n_layers=62, **_DEEP | {"post_norms": (0.3, 0.015)}),
    "phi3": PHI3,
    "phi3-longrope": LONGROPE,
    "phi3-longrope-short": _with(LONGROPE, {"rope.scaling.original_context_length": 512}),
    "quant-legacy": LEGACY,
    "quant-k": K_QUANTS,
    "quant-i": I_QUANTS,
    "quant-phi3": replace(
        PHI3,
        weights="quant-phi3",
        types={
            "attn_qkv": (T.Q4_0, T.Q5_1),
            "ffn_up": (T.Q4_1, T.Q8_0),
            "ffn_down": (T.Q5_0,),
            "attn_output": (T.Q8_0,),
        },
    ),
    "quant-gemma3": replace(
        GEMMA3,
        weights="quant-gemma3",
        n_layers=6,
        types={
            "token_embd": (T.Q8_0,),
            "attn_q": (T.Q4_0,),
            "attn_k": (T.Q5_0,),
            "attn_v": (T.Q8_0,),
            "attn_output": (T.Q4_1,),
            "ffn_gate": (T.Q4_0,),
            "ffn_up": (T.Q4_0,),
            "ffn_down": (T.Q5_1,),
        },
    ),
}

# The same weights with one rule switched off: name -> (case whose rule it is, the file without the rule).
WITHOUT: dict[str, tuple[str, Case]] = {
    "yarn-as-linear": ("llama-yarn", _with(CASES["llama-yarn"], {"rope.scaling.type": "linear"})),
    "yarn-2048-as-linear": (
        "llama-yarn-2048",
        _with(CASES["llama-yarn-2048"], {"rope.scaling.type": "linear"}),
    ),
    "linear-off": ("llama-linear", _with(CASES["llama-linear"], {"rope.scaling.type": "none"})),
    "rope-freqs-off": ("llama-rope-freqs", LLAMA),
    "scale-linear-old-key": ("llama", _with(LLAMA, {"rope.scale_linear": 4.0})),
    "qwen2-biases-off": ("qwen2", replace(QWEN2, bias_std=0.0)),
    "gemma2-window-off": ("gemma2", _with(GEMMA2, {"attention.sliding_window": 4096})),
    "gemma2-window-9": ("gemma2", _with(GEMMA2, {"attention.sliding_window": 9})),
    "gemma2-all-window": ("gemma2", _with(GEMMA2, {"attention.sliding_window_pattern": [True] * 4})),
    "gemma2-attention-cap-off": ("gemma2", _with(GEMMA2, {"attn_logit_softcapping": 1e5})),
    "gemma2-final-cap-off": ("gemma2", _with(GEMMA2, {"final_logit_softcapping": 1e5})),
    "gemma3-window-off": ("gemma3", _with(GEMMA3, {"attention.sliding_window": 4096})),
    "gemma3-no-window-key": ("gemma3", replace(GEMMA3, extra={})),
    "gemma3-one-base": ("gemma3", _with(GEMMA3, {"rope.freq_base_swa": 1e6})),
    "gemma3-scaling-off": ("gemma3-linear", GEMMA3),
    "longrope-attention-factor-off": ("phi3-longrope", _with(LONGROPE, {"rope.scaling.attn_factor": 1.0})),
    "longrope-short": ("phi3-longrope", CASES["phi3-longrope-short"]),
    "longrope-factors-off": ("phi3-longrope-short", replace(CASES["phi3-longrope-short"], rope_tensors={})),
}
