"""From the metadata of a file to the Config of its model."""

import math

from minfer_jax.errors import GGUFError, UnsupportedError
from minfer_jax.gguf import Metadata
from minfer_jax.models.arch import ARCHITECTURES, Architecture
from minfer_jax.models.config import Config, Rope


def read_config(md: Metadata, n_ctx: int | None = None) -> Config:
    """Config of the model whose metadata this is; n_ctx None takes the training context.

    Raises GGUFError for missing or impossible values, UnsupportedError for an architecture that we lack, or for what
    the shared blocks lack.
    """
    name = md.string("general.architecture")
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{md.source}: architecture {name!r} is not supported; supported are {', '.join(sorted(ARCHITECTURES))}"
        )
    arch = ARCHITECTURES[name]
    a = arch.name
    n_layers = _count(md, f"{a}.block_count", limit=10_000)
    d_model = _count(md, f"{a}.embedding_length")
    n_heads = _count(md, f"{a}.attention.head_count")
    n_kv_heads = _count(md, f"{a}.attention.head_count_kv", n_heads)
    d_ff = _count(md, f"{a}.feed_forward_length")
    n_ctx_train = _count(md, f"{a}.context_length")
    if n_heads % n_kv_heads:
        raise GGUFError(f"{md.source}: {n_heads} heads cannot share {n_kv_heads} key/value heads evenly")
    head_dim = _count(md, f"{a}.attention.key_length", d_model // n_heads)
    if md.integer(f"{a}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{md.source}: {a}.attention.value_length differs from key_length; not supported")
    if md.integer(f"{a}.expert_count", 0) > 0:
        raise UnsupportedError(f"{md.source}: mixture-of-experts models ({a}.expert_count > 0) are not supported")

    window = min(max(0, md.integer(f"{a}.attention.sliding_window", arch.default_window)), 2**31 - 1)
    full = _full_layers(arch, md, n_layers) if window else [True] * n_layers
    local_base = _not_negative(md, f"{a}.rope.freq_base_swa", arch.local_rope_base or 0.0)
    return Config(
        arch=a,
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        d_ff=d_ff,
        vocab_size=len(md.strings("tokenizer.ggml.tokens")),
        n_ctx=n_ctx or n_ctx_train,
        n_ctx_train=n_ctx_train,
        rms_eps=_positive(md, f"{a}.attention.layer_norm_rms_epsilon"),
        rope=_read_rope(a, md, head_dim, n_ctx_train, local_base),
        windows=tuple(0 if is_full else window for is_full in full),
        rope_tables=tuple(0 if is_full or not local_base else 1 for is_full in full),
        activation=arch.activation,
        attention_scale=1 / math.sqrt(d_model // n_heads if n_layers == arch.width_scaled_depth else head_dim),
        embedding_scale=math.sqrt(d_model) if arch.scale_embedding else 1.0,
        attention_softcap=_not_negative(md, f"{a}.attn_logit_softcapping", arch.attention_softcap),
        final_softcap=_not_negative(md, f"{a}.final_logit_softcapping", arch.final_softcap),
    )


def _full_layers(arch: Architecture, md: Metadata, n_layers: int) -> list[bool]:
    """Which layers of a sliding-window model see everything: by a period, or one flag (true: window) for each."""
    key = f"{arch.name}.attention.sliding_window_pattern"
    pattern = md.get(key, arch.full_every)
    if not hasattr(pattern, "__len__"):
        period = md.integer(key, arch.full_every)
        return [bool(period and (i + 1) % period == 0) for i in range(n_layers)]
    flags = [bool(v) for v in pattern]  # booleans, or integers in older files
    if len(flags) != n_layers:
        raise GGUFError(f"{md.source}: {key} has {len(flags)} entries for {n_layers} layers")
    return [not windowed for windowed in flags]


def _read_rope(a: str, md: Metadata, head_dim: int, n_ctx_train: int, local_base: float) -> Rope:
    dim = md.integer(f"{a}.rope.dimension_count", head_dim)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise GGUFError(f"{md.source}: {a}.rope.dimension_count is {dim}, expected even and at most {head_dim}")
    base = _positive(md, f"{a}.rope.freq_base", 10000.0)
    linear = _not_negative(md, f"{a}.rope.scale_linear", 0.0)  # the key of files older than rope.scaling
    scaling = md.string(f"{a}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(f"{md.source}: {a}.rope.scaling.type {scaling!r} is not none, linear, yarn or longrope")
    if scaling == "yarn" and base <= 1:
        raise GGUFError(f"{md.source}: {a}.rope.freq_base is {base}, YaRN needs more than 1")
    return Rope(
        dim=dim,
        bases=(base, local_base) if local_base else (base,),
        scaling=scaling,
        factor=1.0 if scaling == "none" else _not_negative(md, f"{a}.rope.scaling.factor", linear) or 1.0,
        original_context=_count(md, f"{a}.rope.scaling.original_context_length", n_ctx_train),
        attention_factor=_positive(md, f"{a}.rope.scaling.attn_factor", 1.0),
        beta_fast=_positive(md, f"{a}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=_positive(md, f"{a}.rope.scaling.yarn_beta_slow", 1.0),
    )


def _count(md: Metadata, key: str, default: int | None = None, limit: int = 2**31 - 1) -> int:
    """A positive integer. Some files give it once for each layer; those must all be equal."""
    if hasattr(md.get(key), "__len__") and not isinstance(md.get(key), str):
        distinct = {int(v) for v in md.numbers(key)}
        if len(distinct) != 1:
            raise UnsupportedError(f"{md.source}: {key} differs between layers ({sorted(distinct)}); not supported")
        value = distinct.pop()
    else:
        value = md.integer(key) if default is None else md.integer(key, default)
    if not 0 < value <= limit:
        raise GGUFError(f"{md.source}: {key} is {value}, expected 1 to {limit}")
    return value


def _positive(md: Metadata, key: str, default: float | None = None) -> float:
    value = md.number(key) if default is None else md.number(key, default)
    if not 0 < value < 1e30:
        raise GGUFError(f"{md.source}: {key} is {value}, expected a positive number below 1e30")
    return value


def _not_negative(md: Metadata, key: str, default: float) -> float:
    """As :func:`_positive`, but 0 says that there is none."""
    return 0.0 if md.number(key, default) == 0 else _positive(md, key, default)
