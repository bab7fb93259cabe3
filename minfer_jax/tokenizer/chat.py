"""Conversations to text by a chat template, with the messages' own words kept apart from the template's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2

from minfer_jax.errors import ArgumentError, ChatTemplateError
from minfer_jax.gguf import Metadata
from minfer_jax.tokenizer.literals import LiteralMatcher
from minfer_jax.tokenizer.sandbox import TemplateRefusal, run_template

_KEY = "tokenizer.chat_template"
_PRIVATE_USE = range(0xE000, 0xF900)


class ChatTemplates:
    """The chat templates of one file.

    special_texts: bos_token, eos_token and so on, as templates know them. A broken template harms nobody before it is
    used.
    """

    def __init__(self, metadata: Metadata, special_texts: Mapping[str, str]) -> None:
        self._source = metadata.source
        self._special_texts = dict(special_texts)
        self.default: str | None = metadata.string(_KEY, None)
        self.named = {
            key.removeprefix(_KEY + "."): metadata.string(key) for key in metadata if key.startswith(_KEY + ".")
        }

    def render(
        self, messages: Sequence[Mapping[str, Any]], template: str | None, add_generation_prompt: bool, variables: dict
    ) -> str:
        """Return the conversation as text. Raises ChatTemplateError, ArgumentError."""
        source = self._find(template)
        return self._run(source, check_messages(messages, source), add_generation_prompt, variables)

    def render_parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        template: str | None,
        add_generation_prompt: bool,
        variables: dict,
        control: LiteralMatcher,
    ) -> Iterator[str | int]:
        """Yield the conversation as ids of the control tokens that the template wrote, and the text between them.

        Before rendering, the first character of every control token's text inside messages and variables is replaced
        by a private one that occurs nowhere else; after the text is cut at the control tokens that remain, it is put
        back. So a message's text still merges with the template's text beside it, and templates that strip, cut or
        compare messages see the same length and, but for that one character, the same text.
        """
        source = self._find(template)
        checked = check_messages(messages, source)
        given = {name: value for name, value in variables.items() if not name.endswith("_token")}
        used = set().union(source, *_strings([checked, given, *variables.values()]))
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        stand_in = dict(zip(sorted(control.first_characters()), free, strict=False))
        if len(stand_in) < len(control.first_characters()):
            raise ArgumentError("messages hold every private-use character U+E000..U+F8FF; remove some")
        checked, given = (
            _map_strings(value, lambda text: control.replace_first_characters(text, stand_in))
            for value in (checked, given)
        )
        text = self._run(source, checked, add_generation_prompt, variables | given)
        back = str.maketrans({private: original for original, private in stand_in.items()})
        for part in control.split(text):
            yield part if isinstance(part, int) else part.translate(back)

    def _find(self, template: str | None) -> str:
        if template is None:
            if self.default is None:
                raise ChatTemplateError(
                    f"{self._source}: the file has no chat template ({_KEY}), so a conversation has no form this model "
                    "knows; give the template's Jinja source with template=..., or use plain text"
                )
            return self.default
        return self.named.get(template, template)

    def _run(self, source: str, messages: list[dict], add_generation_prompt: bool, variables: dict) -> str:
        known = {"tools": None, "documents": None, **self._special_texts, **variables}
        known.update(messages=messages, add_generation_prompt=add_generation_prompt)
        try:
            return run_template(source, known)
        except TemplateRefusal as error:
            raise ChatTemplateError(f"{self._source}: the chat template refuses: {error}") from error
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"{self._source}: the chat template is broken at line {error.lineno}: {error.message}; give another "
                "with template=..."
            ) from error
        except Exception as error:  # any expression of the template can fail in its own way
            raise ChatTemplateError(
                f"{self._source}: the chat template failed: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error


def check_messages(messages: Any, template: str) -> list[dict[str, Any]]:
    """Return a copy of the messages with text parts joined by newlines. Raises ArgumentError naming the message.

    The role "developer" becomes "system" unless the template names it: most would drop such a message silently."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ArgumentError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise ArgumentError("messages is empty; give at least one message")
    return [_check_message(message, f"messages[{i}]", template) for i, message in enumerate(messages)]


def _check_message(message: Any, place: str, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(f"{place} must be a dict with role and content, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ArgumentError(f"{place}: role must be a non-empty string, not {role!r}")
    if role == "developer" and "developer" not in template:
        role = "system"
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(_part_text(part, f"{place}.content[{i}]") for i, part in enumerate(content))
    if content is None and not message.get("tool_calls"):
        raise ArgumentError(f"{place}: content is missing; only a message with tool_calls may go without")
    if content is not None and not isinstance(content, str):
        raise ArgumentError(f"{place}: content must be a string or a list of parts, not {type(content).__name__}")
    checked = _map_strings(dict(message), str) | {"role": role}
    return checked | {"content": content} if "content" in message else checked


def _part_text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise ArgumentError(f"{place} must be a part with a type, not {type(part).__name__}")
    if part.get("type") != "text":
        raise ArgumentError(f"{place} is of type {part.get('type')!r}; only text parts are supported")
    if not isinstance(part.get("text"), str):
        raise ArgumentError(f"{place}: text must be a string, not {type(part.get('text')).__name__}")
    return part["text"]


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Copy nested dicts and lists with every string in them changed; keys and other values stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(inner, change) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(inner, change) for inner in value]
    return value


def _strings(value: Any) -> Iterator[str]:
    """Yield every string in nested dicts and lists, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
