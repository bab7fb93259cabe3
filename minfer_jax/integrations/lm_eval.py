"""Model type ``minfer_jax`` of lm-evaluation-harness, registered when this module is imported; no torch is.

import lm_eval
from minfer_jax.integrations.lm_eval import MinferLM
lm_eval.simple_evaluate(model=MinferLM("smollm2-135m"), tasks=["arc_easy"])
"""

import json
import logging
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import postprocess_generated_text

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError, naming
from minfer_jax.generation import generate_batch
from minfer_jax.generation.arguments import prompt_ids
from minfer_jax.integrations.harness import Chat, claim_cache, generation_arguments
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.sampling import Sampler
from minfer_jax.scoring.pairs import encode_pair, encode_scorable, warn_of_merged
from minfer_jax.scoring.texts import from_start, sequences_as_finished
from minfer_jax.scoring.tokens import id_pairs_as_finished

log = logging.getLogger("minfer_jax")

_LOADING = ("n_ctx", "implementation", "dtype", "precision", "pre")
_ROWS = 16  # prompts that generate side by side

EncodedRequest = tuple[tuple[str, str] | None, list[int], list[int]]
"""((context, continuation), ids of the context, ids of the continuation), as the harness hands them around."""


@register_model("minfer_jax")
class MinferLM(TemplateLM):
    """A GGUF model that the harness can ask.

    pretrained: what ``load`` takes, or a loaded Model or Runtime. n_ctx, implementation, dtype, precision, pre: as in
        ``load``.
    batch_tokens: token slots per batch of scoring, as in ``score``. batch_size: prompts that generate side by side;
        "auto" and None: 16. max_batch_size, device: ignored, since the harness gives them to every model.
    max_gen_toks: most tokens to generate where a task does not say. seed: of tasks that sample.
    think_end_token: text behind which an answer begins; what stands before it is dropped.
    chat_template_args: more names for the chat template, such as {"enable_thinking": False}.
    parse_special: read control tokens in a task's texts as such, as the harness's own models do and as texts made by
        a chat template need.

    Errors belong to the MinferError family and name task and document.
    """

    def __init__(
        self,
        pretrained: str | Path | Model,
        *,
        batch_tokens: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_gen_toks: int = 256,
        seed: int = 1234,
        think_end_token: str | None = None,
        chat_template_args: dict[str, Any] | None = None,
        parse_special: bool = True,
        **loading: Any,
    ) -> None:
        super().__init__()
        for name in loading:
            if name not in _LOADING:
                raise ArgumentError(f"{name} is no argument of the model type minfer_jax; leave it out")
            if isinstance(pretrained, Model):
                raise ArgumentError(f"{name} is given with a model that is loaded already; give it to load()")
        self.model = pretrained if isinstance(pretrained, Model) else load(pretrained, **loading)
        rows = _ROWS if batch_size is None or str(batch_size).startswith("auto") else batch_size
        rows = int(rows) if isinstance(rows, str) and rows.isdecimal() else rows
        self.batch_size = check_integer("batch_size", rows, 1)
        self.max_gen_toks = check_integer("max_gen_toks", max_gen_toks, 1)
        self.parse_special = parse_special
        self._batch_tokens = None if batch_tokens is None else check_integer("batch_tokens", batch_tokens, 1)
        self._seed = check_integer("seed", seed, 0)
        self._think_end = think_end_token
        self._chat = Chat(self.model, dict(chat_template_args or {}))

    # ---- scoring

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability, whether greedy) of each (context, continuation), by the rule of ``score``.

        That is the harness's, but where a token spans the boundary: then the context is what the model would read (see
        ``encode_pair``), and a continuation that is left without a token of its own is an ArgumentError.
        """
        encoded: list[EncodedRequest] = []
        merged = 0
        for i, request in enumerate(requests):
            context, continuation = asked = request.args
            with _naming(request, i):
                pair = encode_scorable(self.model, context, continuation, self.parse_special)
            merged += pair.merged
            encoded.append((asked, pair.context, pair.continuation))
        warn_of_merged(merged, len(requests))
        return self._loglikelihood_tokens(encoded, disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[EncodedRequest], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """As above for ids; answers go to the cache as batches finish. What does not fit is cut on the left."""
        pairs = [(context, continuation) for _, context, continuation in requests]
        answers = [(math.nan, False)] * len(pairs)
        cut = 0
        with progress_bar("scoring", len(pairs), "request", False if disable_tqdm else None) as bar:
            for i, score in id_pairs_as_finished(self.model, pairs, self._batch_tokens, lambda i: naming("request", i)):
                answers[i] = (score.logprob, score.is_greedy)
                cut += score.truncated
                if (asked := requests[i][0]) is not None:
                    self.cache_hook.add_partial("loglikelihood", asked, answers[i])
                bar.update(1)
        self._warn_of_cut(cut, len(pairs))
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each text, every token scored once: the protocol "rolling" of ``perplexity``."""
        sequences = []
        for i, request in enumerate(requests):
            with _naming(request, i):
                ids = self.model.tokenizer.encode(request.args[0], parse_special=self.parse_special)
                sequences.append(from_start(self.model.tokenizer, ids))
        answers = [math.nan] * len(requests)
        finished = sequences_as_finished(
            self.model,
            sequences,
            self.max_length,
            self._batch_tokens,
            False if disable_tqdm else None,
            lambda i: _naming(requests[i], i),
        )
        for i, values in finished:
            answers[i] = math.fsum(values)
            self.cache_hook.add_partial("loglikelihood_rolling", requests[i].args, answers[i])
        return answers

    # ---- generation

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each (context, generation arguments), up to a stop string or end id and without it.

        Contexts are cut on the left to leave room for the most tokens that a task asks for. Without a temperature the
        likeliest tokens are taken; with one they are drawn from the model's own distribution, unless top_k, top_p or
        min_p say otherwise.
        """
        groups: dict[str, list[int]] = {}
        prompts = []
        for i, request in enumerate(requests):
            with _naming(request, i):
                prompts.append(prompt_ids(self.model, request.args[0], self.parse_special))
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=repr), []).append(i)
        answers = [""] * len(requests)
        cut = batches = 0
        with progress_bar("generating", len(requests), "request", False if disable_tqdm else None) as bar:
            for group in groups.values():
                first = requests[group[0]]
                with _naming(first, group[0]):
                    max_tokens, stop, sampling = generation_arguments(self.model, first.args[1], self.max_gen_toks)
                room = self.max_length - max_tokens
                cut += sum(len(prompts[i]) > room for i in group)
                group.sort(key=lambda i: -len(prompts[i]))
                for start in range(0, len(group), self.batch_size):
                    rows = group[start : start + self.batch_size]
                    outputs = generate_batch(
                        self.model,
                        [prompts[i][-room:] for i in rows],
                        max_tokens=max_tokens,
                        sampler=Sampler(**{"seed": self._seed + batches, **sampling}),
                        stop=stop,
                    )
                    batches += 1
                    for i, output in zip(rows, outputs, strict=True):
                        answers[i] = postprocess_generated_text(output.text, stop, self._think_end)
                        self.cache_hook.add_partial("generate_until", requests[i].args, answers[i])
                        bar.update(1)
        self._warn_of_cut(cut, len(requests))
        return answers

    # ---- tokens and chat

    @property
    def max_length(self) -> int:
        return self.model.config.n_ctx

    @property
    def eot_token_id(self) -> int:
        tokenizer = self.model.tokenizer
        return tokenizer.start_id() if tokenizer.eos_id is None else tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        return self.model.tokenizer.start_id()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids with BOS by the model's policy, never twice; without one for ``add_special_tokens=False``."""
        add_bos = False if add_special_tokens is False else None
        return self.model.tokenizer.encode(string, add_bos=add_bos, parse_special=self.parse_special)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        pair = encode_pair(self.model.tokenizer, context, continuation, self.parse_special)
        return pair.context, pair.continuation

    @property
    def tokenizer_name(self) -> str:
        """What cached requests depend on: file, its hash, splitting rule, and arguments of the chat template."""
        return f"{self.model.file.name}-{self.model.sha256()[:16]}-{self.model.tokenizer.pre}{self._chat.name}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Source of the file's template; a name picks another one of the file, for all that follows."""
        return None if chat_template is False or chat_template is None else self._chat.choose(chat_template)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as one text. Without a generation prompt its last message stays open, to be continued."""
        return self._chat.render(chat_history, add_generation_prompt)

    # ---- provenance

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results."""
        reading = {"n_ctx": self.max_length, "pre": self.model.tokenizer.pre, "parse_special": self.parse_special}
        return {"model_sha": self.model.sha256(), "minfer_jax": self.model.provenance | reading}

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Raises ArgumentError when the cache holds answers of another model: its keys know the requests only."""
        if cache_hook.dbdict is not None:
            about = {name: value for name, value in self.get_model_info()["minfer_jax"].items() if name != "versions"}
            generation = {"max_gen_toks": self.max_gen_toks, "think_end_token": self._think_end}
            claim_cache(cache_hook.dbdict, about | generation | {"sha256": self.model.sha256()})
        super().set_cache_hook(cache_hook)

    def _warn_of_cut(self, cut: int, total: int) -> None:
        if cut:
            log.warning("%d of %d contexts lost ids on their left, to fit n_ctx %d", cut, total, self.max_length)


def _naming(request: Any, index: int) -> AbstractContextManager[None]:
    return naming(f"task {request.task_name}, document {request.doc_id}: request", index)
