"""What the model type for lm-evaluation-harness has to translate: generation arguments, chats, cached answers."""

import json
import logging
from collections.abc import MutableMapping
from typing import Any

from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError, ChatTemplateError
from minfer_jax.model import Model

log = logging.getLogger("minfer_jax")

_OWNER = "minfer_jax: model"  # key in a cache of answers; the harness's own are hashes
_SAMPLER_ARGUMENTS = (
    *("temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)
_WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "early_stopping": False}


def generation_arguments(
    model: Model, given: dict[str, Any], max_gen_toks: int
) -> tuple[int, list[str], dict[str, Any]]:
    """(most tokens, stop strings, arguments of Sampler) from those of a task; max_gen_toks: where it says nothing.

    The text of EOS is a stop string, as everywhere in the harness. Raises ArgumentError for what we do not have.
    """
    options: dict[str, Any] = dict(normalize_gen_kwargs(given, max_gen_toks))
    tokenizer = model.tokenizer
    eos = None if tokenizer.eos_id is None else tokenizer.decode([tokenizer.eos_id], skip_special=False)
    stop = handle_stop_sequences(options.pop("until"), eos)
    max_tokens = check_integer("max_gen_toks", options.pop("max_gen_toks"), 1)
    if max_tokens >= model.config.n_ctx:
        raise ArgumentError(
            f"max_gen_toks is {max_tokens} and the context window {model.config.n_ctx}, which leaves no room for a "
            "context; lower it, or load the model with a larger n_ctx"
        )
    neutral = {"temperature": 1.0 if options.pop("do_sample") else 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    sampling = {name: options.pop(name) for name in _SAMPLER_ARGUMENTS if options.get(name) is not None}
    for name, value in options.items():
        if value is not None and (name not in _WITHOUT_EFFECT or _WITHOUT_EFFECT[name] != value):
            raise ArgumentError(f"the generation argument {name}={value!r:.40} is not supported; leave it out")
    return max_tokens, stop, neutral | sampling


class Chat:
    """Conversations of a task as text. arguments: more names for the template."""

    def __init__(self, model: Model, arguments: dict[str, Any]) -> None:
        self._model = model
        self._template: str | None = None  # another one than the file's default
        self._arguments = arguments
        self.name = json.dumps(arguments, sort_keys=True) if arguments else ""
        """What tells one such rendering from another, on one file."""

    def choose(self, name: bool | str) -> str | None:
        """Source of the template that is used from now on: True: the file's default, else the file's of that name.

        Raises ChatTemplateError when the file has none of that name.
        """
        key = f"tokenizer.chat_template.{name}"
        self._template = None
        if isinstance(name, str) and name != "default":
            if key not in self._model.file.metadata:
                raise ChatTemplateError(f"{self._model.file.name}: there is no chat template named {name!r:.40}")
            self._template = self._model.file.metadata.string(key)
        return self._template or self._model.tokenizer.chat_template

    def render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        """The text; without a generation prompt it ends with the last message, which is then to be continued.

        A template that refuses the role "system" gets the conversation without it, with a warning, as in the harness.
        """
        others = [message for message in messages if message["role"] != "system"]
        try:
            text = self._render(messages, add_generation_prompt)
        except ChatTemplateError as error:
            if len(others) in (0, len(messages)):
                raise
            text = self._render(others, add_generation_prompt)
            log.warning("%s; the system message is left out", error)
        return text if add_generation_prompt else _leave_open(text, messages[-1]["content"])

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        variables: dict[str, Any] = {"template": self._template, "add_generation_prompt": add_generation_prompt}
        return self._model.tokenizer.render_chat(messages, **variables, **self._arguments)


def _leave_open(text: str, last: str) -> str:
    """A conversation up to the end of its last message, without what the template writes behind it."""
    begin = text.rindex(last.strip())
    whole = last.lstrip()
    return text[:begin] + (whole if text.startswith(whole, begin) else last.strip())


def claim_cache(store: MutableMapping[str, Any], owner: dict[str, Any]) -> None:
    """Enter the owner of a cache of answers, whose keys say what was asked but not which model answered.

    Raises ArgumentError when there are answers in it already that are not this owner's.
    """
    if store.get(_OWNER, None if len(store) else owner) != owner:
        name = getattr(store, "filename", "the cache")
        raise ArgumentError(
            f"use_cache: {name} holds answers of another model or of other settings; give another name or delete it"
        )
    store[_OWNER] = owner
