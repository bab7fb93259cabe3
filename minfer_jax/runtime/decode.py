"""The device's side of generation: the state of a batch, drawing tokens, and many tokens per program call.

Everything is [B]-shaped; a row is one sequence and knows nothing of the others. Only B, the cache length and the
number of steps are shapes: positions, limits, stop ids and sampler settings are data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.cache import KVCache
from minfer_jax.models.config import Config
from minfer_jax.models.forward import forward
from minfer_jax.models.head import head_weight, logprobs_of
from minfer_jax.models.params import Params
from minfer_jax.runtime.jitted import COMPILER_OPTIONS
from minfer_jax.runtime.readback import Route, deliver
from minfer_jax.sampling import Settings, adjust_logits, argmax, likeliest, sample

NO_TOKEN = -1
"""In place of a token: the row had ended before this step."""

NOT_FINITE = -2
"""In place of a token: the row's logits held NaN or infinity, and the row has ended."""


@dataclass(frozen=True)
class DecodeState:
    """What a row carries from token to token.

    token, position: int32 [B], the last token and its place in the sequence; position -1 marks a row that has ended.
    remaining: int32 [B], how many tokens the row may still produce. in_prompt: bool [B, V]; counts: int32 [B, V],
    of each token in the output.
    """

    token: jax.Array
    position: jax.Array
    remaining: jax.Array
    in_prompt: jax.Array
    counts: jax.Array


jax.tree_util.register_dataclass(DecodeState, ["token", "position", "remaining", "in_prompt", "counts"], [])


def start_state(prompts: Sequence[Sequence[int]], limits: Sequence[int], rows: int, vocab: int) -> DecodeState:
    """The state after the prompts, before the first token; rows beyond the prompts have ended already."""
    token = np.zeros(rows, np.int32)
    position = np.full(rows, -1, np.int32)
    remaining = np.zeros(rows, np.int32)
    in_prompt = np.zeros((rows, vocab), bool)
    for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        token[row] = prompt[-1]
        position[row] = len(prompt) - 1
        remaining[row] = limit
        in_prompt[row, np.asarray(prompt)] = True
    counts = np.zeros((rows, vocab), np.int32)
    return DecodeState(*jax.device_put((token, position, remaining, in_prompt, counts)))


def _advance(
    state: DecodeState,
    logits: jax.Array,
    processed: jax.Array,
    settings: Settings,
    ends: jax.Array,
    native: bool,
    greedy: bool | None = None,
) -> tuple[DecodeState, tuple[jax.Array, jax.Array]]:
    """Draw a token in every row that goes on: logits [B, V] -> state, (token int32 [B], logprob float32 [B]).

    The token is drawn from the ``processed`` logits, its log-probability is that of the raw ones. A draw depends on
    the seed, the row and the position alone, so it is the same in whatever portions the text is generated.
    """
    rows = jnp.arange(logits.shape[0])
    going = state.position >= 0
    z = adjust_logits(processed, settings, state.in_prompt, state.counts)
    if greedy and not native:
        token, logprob, sound = likeliest(z, logits)
    else:  # no keys where none is drawn
        token = argmax(z) if greedy else sample(z, settings, _keys(settings, state), greedy)
        logprob = logprobs_of(logits, token, native)
        sound = jnp.isfinite(logits).all(-1) & jnp.isfinite(z.max(-1))

    remaining = state.remaining - going
    on = going & sound & ~ends[token] & (remaining > 0)
    state = DecodeState(
        token=jnp.where(on, token, 0),
        position=jnp.where(on, state.position + 1, -1),
        remaining=remaining,
        in_prompt=state.in_prompt,
        counts=state.counts.at[rows, token].add(going.astype(jnp.int32)),
    )
    return state, (jnp.where(going, jnp.where(sound, token, NOT_FINITE), NO_TOKEN), jnp.where(going, logprob, 0.0))


def _keys(settings: Settings, state: DecodeState) -> jax.Array:
    """A key for the next token of every row [B]."""
    root = jax.random.wrap_key_data(settings.key, impl="threefry2x32")

    def key(row: jax.Array, position: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(root, row), position)

    return jax.vmap(key)(jnp.arange(len(state.position)), jnp.maximum(state.position, 0))


@partial(jax.jit, static_argnames=("native", "greedy"), donate_argnames="state")
def draw_tokens(
    logits: jax.Array,
    processed: jax.Array | None,
    state: DecodeState,
    settings: Settings,
    ends: jax.Array,
    cancelled: jax.Array,
    *,
    native: bool,
    greedy: bool,
) -> tuple[DecodeState, tuple[jax.Array, jax.Array]]:
    """The next token of every row from logits [B, V] that are there already: those of a prompt, or of a step whose
    logits the host has ``processed``. ends, cancelled: as in :func:`decode`; native: whether the logits are of a model
    on the native library; greedy: what settings.greedy says.

    Returns the state (the one given is consumed) and (tokens int32 [1, B], logprobs float32 [1, B]).
    """
    state = _cancel(state, cancelled)
    state, out = _advance(state, logits, logits if processed is None else processed, settings, ends, native, greedy)
    return state, jax.tree.map(lambda x: x[None], out)


def _cancel(state: DecodeState, cancelled: jax.Array) -> DecodeState:
    return replace(state, position=jnp.where(cancelled, -1, state.position))


@partial(
    jax.jit,
    static_argnames=("config", "steps", "early_exit", "greedy", "readback"),
    donate_argnames=("cache", "state"),
    compiler_options=COMPILER_OPTIONS,
)
def decode(
    params: Params,
    budget: jax.Array,
    cache: KVCache,
    state: DecodeState,
    settings: Settings,
    ends: jax.Array,
    cancelled: jax.Array,
    *,
    config: Config,
    steps: int,
    early_exit: bool,
    greedy: bool | None = None,
    readback: Route = "plain",
) -> tuple[KVCache, DecodeState, tuple[jax.Array, jax.Array]]:
    """Up to ``steps`` more tokens in every row: (cache, state, (tokens int32 [steps, B], logprobs float32 [steps, B])).

    ends: bool [V], ids that end a row (they are in the output). cancelled: bool [B], rows to end now.
    early_exit: stop after ``budget`` (int32 []) steps or when every row has ended. Without it the loop runs ``steps``
    times whatever happens, because on an accelerator asking "go on?" costs more than a wasted step. greedy: as in
    ``sample``; there a question inside the program costs as much. readback: how tokens and logprobs come to the host.
    The cache and the state are consumed.
    """
    rows = state.token.shape[0]
    state = _cancel(state, cancelled)
    blank = (jnp.full((steps, rows), NO_TOKEN, jnp.int32), jnp.zeros((steps, rows)))

    def wanted(carry: tuple) -> jax.Array:
        i, _, state, _ = carry
        more = i < steps
        return more & (i < budget) & (state.position >= 0).any() if early_exit else more

    def step(carry: tuple) -> tuple:
        i, cache, state, out = carry
        logits, cache = forward(params, config, state.token[:, None], state.position[:, None], cache)
        logits = logits[:, 0]
        state, new = _advance(state, logits, logits, settings, ends, head_weight(params).is_tiled, greedy)
        return i + 1, cache, state, jax.tree.map(lambda all, one: all.at[i].set(one), out, new)

    _, cache, state, out = jax.lax.while_loop(wanted, step, (jnp.int32(0), cache, state, blank))
    return cache, state, jax.tree.map(lambda x: deliver(x, readback), out)


@partial(jax.jit, static_argnames="length")
def grow_cache(cache: KVCache, length: int) -> KVCache:
    """A cache of ``length`` slots with the same contents."""
    extra = [(0, 0)] * 3 + [(0, length - cache.length), (0, 0)]
    return KVCache(jnp.pad(cache.k, extra), jnp.pad(cache.v, extra))


@partial(jax.jit, static_argnames="rows")
def first_rows(cache: KVCache, state: DecodeState, rows: int) -> tuple[KVCache, DecodeState]:
    """Cache and state without the rows of padding."""
    return jax.tree.map(lambda x: x[:, :rows], cache), jax.tree.map(lambda x: x[:rows], state)
