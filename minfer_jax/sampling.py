"""Choosing the next token: settings that are checked once, and pure functions on logits that never recompile.

The order is llama.cpp's: bias, penalties, top-k, top-p, min-p, temperature. The filters therefore look at the
probabilities before temperature.
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError

_LARGEST = 1e30  # no setting has a use beyond it, and float32 can still multiply with it
_COLDEST = 1e-5  # below this temperature nothing but the best token has a chance that float32 could tell from none


@dataclass(frozen=True)
class Sampler:
    """How the next token is drawn.

    temperature: 0 (or below 1e-5) takes the likeliest token, the lowest id among equals; 1 samples the model's own
        distribution.
    top_k: keep the k likeliest tokens, 0 keeps all. top_p: keep the likeliest tokens until their probabilities (among
        those that top_k kept) add up to top_p, 1 keeps all. min_p: keep tokens at least min_p times as likely as the
        likeliest, 0 keeps all. At least one token stays; tokens as likely as the last one kept stay too.
        top_k=1, top_p=0 and min_p=1 each mean the same as temperature 0.
    repetition_penalty: positive logits of tokens seen so far are divided by it, others multiplied; once per id, over
        the whole prompt and output. 1 is off.
    frequency_penalty, presence_penalty: subtracted from the logit of a token for each time, or once if ever, that it
        stands in the output; the prompt does not count. 0 is off.
    seed: a non-negative integer makes the text reproducible; None draws a fresh seed, told in ``Generation.seed``.
    logit_bias: token id -> amount added to its logit; ``-math.inf`` forbids the token.

    The defaults are llama.cpp's. Raises ArgumentError naming the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0)
        check_integer("top_k", self.top_k, 0)
        _number("top_p", self.top_p, 0, 1)
        _number("min_p", self.min_p, 0, 1)
        if np.float32(_number("repetition_penalty", self.repetition_penalty)) <= 0:
            raise ArgumentError(f"repetition_penalty is {self.repetition_penalty!r}; give a number above 0 (1 is off)")
        _number("frequency_penalty", self.frequency_penalty)
        _number("presence_penalty", self.presence_penalty)
        if self.seed is not None:
            object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))
        if not isinstance(self.logit_bias, Mapping):
            raise ArgumentError(f"logit_bias is {self.logit_bias!r}; give a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            check_integer("logit_bias: token id", token, 0)
            if bias != -math.inf:
                _number(f"logit_bias[{token}]", bias)

    @property
    def greedy(self) -> bool:
        """Whether only the likeliest token can be drawn."""
        return self.temperature < _COLDEST or self.top_k == 1 or self.top_p == 0 or self.min_p == 1

    def settings(self, vocab_size: int, seed: int) -> "Settings":
        """The same as arrays, for the functions below. logit_bias must lie inside the vocabulary."""
        bias = np.zeros(vocab_size, np.float32)
        for token, amount in self.logit_bias.items():
            if token >= vocab_size:
                raise ArgumentError(f"logit_bias names token {token}; the vocabulary has {vocab_size} tokens")
            bias[token] = amount
        if np.isneginf(bias).all():
            raise ArgumentError("logit_bias forbids every token of the vocabulary")
        return Settings(
            greedy=np.bool_(self.greedy),
            temperature=np.float32(max(self.temperature, _COLDEST)),
            top_k=np.int32(min(self.top_k, np.iinfo(np.int32).max)),
            top_p=np.float32(self.top_p),
            min_p=np.float32(self.min_p),
            repetition_penalty=np.float32(self.repetition_penalty),
            frequency_penalty=np.float32(self.frequency_penalty),
            presence_penalty=np.float32(self.presence_penalty),
            bias=bias,
            key=np.random.SeedSequence(seed).generate_state(2),
        )


@dataclass(frozen=True)
class Settings:
    """A Sampler as a pytree of arrays, so that no setting is part of a compiled program.

    greedy: bool []; temperature, top_p, min_p and the penalties: float32 []; top_k: int32 []; bias: float32 [V];
    key: uint32 [2], data of a threefry key.
    """

    greedy: Any
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    repetition_penalty: Any
    frequency_penalty: Any
    presence_penalty: Any
    bias: Any
    key: Any


jax.tree_util.register_dataclass(Settings, list(Settings.__dataclass_fields__), [])


def fresh_seed() -> int:
    """A seed from the operating system."""
    return secrets.randbits(64)


def adjust_logits(logits: jax.Array, settings: Settings, in_prompt: jax.Array, counts: jax.Array) -> jax.Array:
    """Bias and penalties: logits float32 [B, V], in_prompt bool [B, V], counts int32 [B, V] (of the output) ->
    float32 [B, V]. With neutral settings the logits come back bit for bit."""
    z = logits + settings.bias
    seen = in_prompt | (counts > 0)
    penalised = jnp.where(z > 0, z / settings.repetition_penalty, z * settings.repetition_penalty)
    z = jnp.where(seen, penalised, z)
    return z - counts * settings.frequency_penalty - (counts > 0) * settings.presence_penalty


def keep_top_k(z: jax.Array, k: jax.Array) -> jax.Array:
    """Logits outside the k largest of each row become -inf; k int32 [], 0 keeps all. Ties with the k-th stay."""

    def cut(z: jax.Array) -> jax.Array:
        return _keep_heaviest(z, jnp.ones_like(z), jnp.broadcast_to(k, z.shape[:-1]).astype(z.dtype))

    return jax.lax.cond((k > 0) & (k < z.shape[-1]), cut, lambda z: z, z)


def keep_top_p(z: jax.Array, p: jax.Array) -> jax.Array:
    """Nucleus filter (arXiv 1904.09751): the likeliest tokens of each row up to mass p stay, others become -inf.

    z: float32 [B, V], -inf for tokens already out; p: float32 []. Ties with the last one kept stay.
    """

    def cut(z: jax.Array) -> jax.Array:
        weights = jnp.exp(z - z.max(-1, keepdims=True))
        return _keep_heaviest(z, weights, jnp.maximum(p * weights.sum(-1), jnp.finfo(z.dtype).tiny))

    return jax.lax.cond(p < 1, cut, lambda z: z, z)


def keep_min_p(z: jax.Array, p: jax.Array) -> jax.Array:
    """Tokens less than p times as likely as the row's likeliest become -inf: z float32 [B, V], p float32 []."""
    return jnp.where(z >= z.max(-1, keepdims=True) + jnp.log(p), z, -jnp.inf)


def sample(z: jax.Array, settings: Settings, keys: jax.Array, greedy: bool | None = None) -> jax.Array:
    """One token per row from adjusted logits: z float32 [B, V], keys [B] typed PRNG keys -> int32 [B].

    A greedy choice costs two reductions; nothing is ever sorted. The draw is the Gumbel-max trick.
    greedy: what settings.greedy says, where that is known when the program is traced; None asks it in the program.
    """

    def draw(z: jax.Array) -> jax.Array:
        z = keep_min_p(keep_top_p(keep_top_k(z, settings.top_k), settings.top_p), settings.min_p)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, z.shape[-1:], z.dtype))(keys)
        return z / settings.temperature + noise

    if greedy is None:
        return argmax(jax.lax.cond(settings.greedy, lambda z: z, draw, z))
    return argmax(z if greedy else draw(z))


def argmax(z: jax.Array) -> jax.Array:
    """Index of the largest value of each row, the lowest among equals: float32 [B, V] -> int32 [B].

    Two plain reductions: XLA's own argmax does not vectorise on CPU and takes five times as long. A row that holds
    NaN gives the last index.
    """
    ids = jnp.arange(z.shape[-1], dtype=jnp.int32)
    return jnp.where(z == z.max(-1, keepdims=True), ids, z.shape[-1] - 1).min(-1)


def likeliest(z: jax.Array, logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What a greedy step asks of each row, in two passes over the vocabulary: z and logits float32 [B, V] ->
    (``argmax(z)`` int32, its log-probability by ``logits``, whether these and the largest z are finite), [B] each.

    On a GPU every reduction that stands alone costs two launches.
    """

    def largest(a: tuple, b: tuple) -> tuple:
        return tuple(map(jax.lax.max, a, b))

    least = jnp.float32(-jnp.inf)
    peak, top, size = jax.lax.reduce((z, logits, jnp.abs(logits)), (least, least, least), largest, (1,))

    def step(a: tuple, b: tuple) -> tuple:
        return jax.lax.min(a[0], b[0]), jax.lax.add(a[1], b[1])

    last = jnp.int32(z.shape[-1] - 1)
    ids = jnp.where(z == peak[:, None], jnp.arange(z.shape[-1], dtype=jnp.int32), last)
    token, total = jax.lax.reduce((ids, jnp.exp(logits - top[:, None])), (last, jnp.float32(0)), step, (1,))
    own = jnp.take_along_axis(logits, token[:, None], 1)[:, 0]
    return token, own - top - jnp.log(total), jnp.isfinite(size) & jnp.isfinite(peak)


def _keep_heaviest(z: jax.Array, weights: jax.Array, target: jax.Array) -> jax.Array:
    """Keep the largest logits of each row whose weights reach ``target`` [B]; the others become -inf.

    The threshold is found bit by bit on the floats' own order, 32 masked sums instead of a sort. Float sums in a
    fixed order grow monotonically with the set summed, so the search is exact.
    """
    bits = jax.lax.bitcast_convert_type(z, jnp.uint32)
    order = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))  # unsigned, ascending with z

    def refine(i: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        reached = jnp.where(order >= higher[..., None], weights, 0).sum(-1)
        return jnp.where(reached >= target, higher, threshold)

    threshold = jax.lax.fori_loop(0, 32, refine, jnp.zeros(z.shape[:-1], jnp.uint32))
    return jnp.where(order >= threshold[..., None], z, -jnp.inf)


def _number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentError(f"{name} is {value!r}; give a number")
    if not abs(value) <= _LARGEST or not low <= value <= high:  # NaN fails the first
        bounds = {(0, math.inf): "of at least 0", (0, 1): "between 0 and 1"}.get((low, high), "that float32 can hold")
        raise ArgumentError(f"{name} is {value!r}; give a number {bounds}")
    return float(value)
