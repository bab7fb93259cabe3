"""Token generation on the device: prompts into a cache, then many tokens per program call.

Everything is [B]-shaped; a row is one sequence and knows nothing of the others. Only B, the cache length and the
number of steps are shapes: positions, limits, stop ids and sampler settings are data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from minfer_jax.models.cache import KVCache, init_cache
from minfer_jax.models.config import Config
from minfer_jax.models.forward import forward
from minfer_jax.models.params import Params
from minfer_jax.runtime import programs
from minfer_jax.runtime.buckets import MAX_STEPS, cache_bucket, prompt_columns, steps_bucket
from minfer_jax.sampling import Settings, adjust_logits, sample

NOTHING = -1
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


def prefill_prompts(
    params: Params, config: Config, prompts: Sequence[Sequence[int]], rows: int, length: int
) -> tuple[jax.Array, KVCache]:
    """Logits [rows, V] after each prompt, and a new cache of ``length`` slots that holds the prompts.

    Rows are aligned to the right: padding (position -1) may stand anywhere, and so every row's last token is in the
    last column of the last chunk.
    """
    cache = init_cache(config, rows, length)
    columns = prompt_columns(max(map(len, prompts)))
    width = columns[-1]
    tokens = np.zeros((rows, width), np.int32)
    positions = np.full((rows, width), -1, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = prompt
        positions[row, width - len(prompt) :] = np.arange(len(prompt))
    for begin, end in pairwise((0, *columns)):
        tail = np.arange(1, rows + 1, dtype=np.int32) * (end - begin) - 1
        logits, cache = programs.prefill(params, config, tokens[:, begin:end], positions[:, begin:end], cache, tail)
    return logits, cache


def _advance(
    state: DecodeState, logits: jax.Array, settings: Settings, ends: jax.Array
) -> tuple[DecodeState, tuple[jax.Array, jax.Array]]:
    """Draw a token in every row that goes on: logits [B, V] -> state, (token int32 [B], logprob float32 [B]).

    The log-probability is that of the raw logits. A draw depends on the seed, the row and the position alone, so
    it is the same in whatever portions the text is generated.
    """
    rows = jnp.arange(logits.shape[0])
    going = state.position >= 0
    root = jax.random.wrap_key_data(settings.key, impl="threefry2x32")
    keys = jax.vmap(lambda row, position: jax.random.fold_in(jax.random.fold_in(root, row), position))(
        rows, jnp.maximum(state.position, 0)
    )
    z = adjust_logits(logits, settings, state.in_prompt, state.counts)
    token = sample(z, settings, keys)
    logprob = logits[rows, token] - jax.nn.logsumexp(logits, -1)
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
    return state, (jnp.where(going, jnp.where(sound, token, NOT_FINITE), NOTHING), jnp.where(going, logprob, 0.0))


@partial(jax.jit, donate_argnames="state")
def first_tokens(
    logits: jax.Array, state: DecodeState, settings: Settings, ends: jax.Array
) -> tuple[DecodeState, tuple[jax.Array, jax.Array]]:
    """The first token of every row from the prompt's logits [B, V]; ends: bool [V], the ids that end a row.

    Returns the state (the one given is consumed) and (tokens int32 [1, B], logprobs float32 [1, B]).
    """
    state, out = _advance(state, logits, settings, ends)
    return state, jax.tree.map(lambda x: x[None], out)


@partial(
    jax.jit,
    static_argnames=("config", "steps", "early_exit"),
    donate_argnames=("cache", "state"),
    compiler_options=programs.COMPILER_OPTIONS,
)
def decode(
    params: Params,
    config: Config,
    steps: int,
    early_exit: bool,
    budget: jax.Array,
    cache: KVCache,
    state: DecodeState,
    settings: Settings,
    ends: jax.Array,
    cancelled: jax.Array,
) -> tuple[KVCache, DecodeState, tuple[jax.Array, jax.Array]]:
    """Up to ``steps`` more tokens in every row: (cache, state, (tokens int32 [steps, B], logprobs float32 [steps, B])).

    ends: bool [V], ids that end a row (they are in the output). cancelled: bool [B], rows to end now.
    early_exit: stop after ``budget`` (int32 []) steps or when every row has ended. Without it the loop runs ``steps``
    times whatever happens, because on an accelerator asking "go on?" costs more than a wasted step.
    The cache and the state are consumed.
    """
    rows = state.token.shape[0]
    state = replace(state, position=jnp.where(cancelled, -1, state.position))
    blank = (jnp.full((steps, rows), NOTHING, jnp.int32), jnp.zeros((steps, rows)))

    def wanted(carry: tuple) -> jax.Array:
        i, _, state, _ = carry
        more = i < steps
        return more & (i < budget) & (state.position >= 0).any() if early_exit else more

    def step(carry: tuple) -> tuple:
        i, cache, state, out = carry
        logits, cache = forward(params, config, state.token[:, None], state.position[:, None], cache)
        state, new = _advance(state, logits[:, 0], settings, ends)
        return i + 1, cache, state, jax.tree.map(lambda all, one: all.at[i].set(one), out, new)

    _, cache, state, out = jax.lax.while_loop(wanted, step, (jnp.int32(0), cache, state, blank))
    return cache, state, out


@partial(jax.jit, static_argnames="length")
def grow_cache(cache: KVCache, length: int) -> KVCache:
    """A cache of ``length`` slots with the same contents."""
    extra = [(0, 0)] * 3 + [(0, length - cache.length), (0, 0)]
    return KVCache(jnp.pad(cache.k, extra), jnp.pad(cache.v, extra))


class Decoder:
    """One run of generation: owns its cache and state, gives tokens in portions.

    prompts: token ids, at least one each; limits: how many tokens each row may produce, at least one, such that
    prompt and output fit config.n_ctx. rows: number of device rows, the prompts and padding.
    """

    def __init__(
        self,
        params: Params,
        config: Config,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        settings: Settings,
        ends: np.ndarray,
        rows: int,
    ) -> None:
        self._params, self._config = params, config
        self._settings, self._ends = jax.device_put((settings, ends))
        self._prompts, self._limits, self._rows = prompts, limits, rows
        self._state = start_state(prompts, limits, rows, ends.shape[0])
        self._cache: KVCache | None = None
        self._produced = 0  # steps taken; a row that has not ended has as many tokens
        self._early_exit = jax.default_backend() == "cpu"

    def next(self, count: int, cancelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 and log-probabilities float32, both [n, rows]: first one, then about ``count`` at a time.

        cancelled: bool [rows], rows whose text has ended by a decision of the host.
        """
        if self._cache is None:
            length = cache_bucket(self._needed(1 + MAX_STEPS), self._config.n_ctx)
            logits, self._cache = prefill_prompts(self._params, self._config, self._prompts, self._rows, length)
            self._state, out = first_tokens(logits, self._state, self._settings, self._ends)
            self._produced = 1
            return jax.device_get(out)

        count = min(count, MAX_STEPS, max(self._limits) - self._produced)
        steps = MAX_STEPS if self._early_exit else steps_bucket(count)
        taken = count if self._early_exit else steps
        needed = self._needed(self._produced + taken)
        if needed > self._cache.length:
            self._cache = grow_cache(self._cache, cache_bucket(needed, self._config.n_ctx, self._cache.length))
        self._cache, self._state, out = decode(
            self._params,
            self._config,
            steps,
            self._early_exit,
            np.int32(count),
            self._cache,
            self._state,
            self._settings,
            self._ends,
            cancelled,
        )
        self._produced += taken
        tokens, logprobs = jax.device_get(out)
        return tokens[:taken], logprobs[:taken]

    def _needed(self, produced: int) -> int:
        """Cache slots for the prompts and the first ``produced`` tokens of each row."""
        return max(len(p) + min(produced, n) for p, n in zip(self._prompts, self._limits, strict=True))
