"""Running a chat template from an untrusted file: Jinja's immutable sandbox, plus limits on work and size.

The environment is the one that transformers gives to templates: trimmed blocks, ``break`` and ``continue``, ``tojson``
without HTML escapes, ``raise_exception``, ``strftime_now``, and a ``{% generation %}`` tag that only passes its body
through. On top, a rendering may take at most MAX_STEPS loop turns and calls, MAX_SECONDS, and MAX_CHARS characters, in
its output and in any string or list it builds. The limits stop endless loops and strings that double; they are no
substitute for limits of the operating system when files come from an enemy.
"""

import datetime
import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes, sandbox
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

MAX_STEPS = 500_000
MAX_SECONDS = 10.0
MAX_CHARS = 1 << 24
_MAX_WIDTH = 10_000
_VALUE_COST = 16  # characters that each value counts besides its own, so that walking large structures stays short
_WIDTH_FUNCTIONS = frozenset("center ljust rjust zfill expandtabs indent wordwrap truncate batch slice lipsum".split())


class TemplateRefusal(jinja2.TemplateError):
    """The template itself refused the conversation, by ``raise_exception``."""


class _Meter:
    """What one rendering has used up."""

    def __init__(self) -> None:
        self.steps = self.chars = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> str:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        if time.monotonic() > self.deadline:
            raise SecurityError(f"the template takes more than {MAX_SECONDS:g} seconds")
        return ""

    def output(self, size: int) -> None:
        self.chars += size
        if self.chars > MAX_CHARS:
            raise _too_large()


_current: ContextVar[_Meter] = ContextVar("template_meter")


def _meter() -> _Meter:
    try:
        return _current.get()
    except LookupError:  # constants folded while compiling
        return _Meter()


def _too_large() -> SecurityError:
    return SecurityError(f"the template builds more than {MAX_CHARS} characters")


def _size(*values: Any) -> int:
    """Count the characters that values take when written out, shared parts every time; raises above the limit."""
    total, stack = 0, list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            stack.extend(value.keys())
            stack.extend(value.values())
        elif isinstance(value, (list, tuple, set)):
            stack.extend(value)
        elif isinstance(value, int):
            total += value.bit_length() // 3
        total += _VALUE_COST
        if total + _VALUE_COST * len(stack) > MAX_CHARS:
            raise _too_large()
    return total


def _check_call(name: str, args: tuple, kwargs: dict) -> None:
    """Refuse the calls whose result is far larger than their arguments. args: with the object of a method in front."""
    size = _size(*args, *kwargs.values())
    if name in _WIDTH_FUNCTIONS:
        widths = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, int)]
        if any(width > _MAX_WIDTH for width in widths):
            raise SecurityError(f"{name} with a width above {_MAX_WIDTH}")
    elif name == "replace" and len(args) >= 3 and all(isinstance(v, str) for v in args[:3]):
        _check_size(size + args[0].count(args[1]) * len(args[2]))
    elif name == "join":
        values = (*args, *kwargs.values())
        separator = max((len(v) for v in values if isinstance(v, str)), default=0)
        count = max((len(v) for v in values if isinstance(v, (list, tuple))), default=sandbox.MAX_RANGE)
        _check_size(size + separator * count)
    elif name in ("format", "format_map") and args and isinstance(args[0], str):
        _check_format(args[0])


def _check_format(text: str) -> None:
    if re.search(r"\d{5}", text):
        raise SecurityError("a format with a width above 9999")


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise _too_large()


def _metered_filter(name: str, function: Callable) -> Callable:
    @functools.wraps(function)  # keeps Jinja's marks for the context argument
    def call(*args: Any, **kwargs: Any) -> Any:
        plain = args[1:] if getattr(function, "jinja_pass_arg", None) else args
        _meter().step()
        _check_call(name, plain, kwargs)
        return function(*args, **kwargs)

    return call


class _AddMeters(NodeTransformer):
    """Rewrites a parsed template so that each loop turn takes a step and ``~`` checks its size."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        step = nodes.Call(nodes.EnvironmentAttribute("metered_step"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("metered_concat"), node.nodes, [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks the assistant's words for training; here it marks nothing."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(lineno)


class _Environment(sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _meter().step()
        size = _size(left, right)
        if operator == "*":
            counts = [value for value in (left, right) if isinstance(value, int)]
            _check_size(size * max(1, *counts) if len(counts) == 1 else size)
        elif operator == "**" and isinstance(right, (int, float)):
            _check_size(size * max(1, int(abs(right))))
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
            _check_call("ljust" if "*" in left else "", ("", *(right if isinstance(right, tuple) else (right,))), {})
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if __obj in (__self.metered_step, __self.metered_concat):  # put there by _AddMeters
            return __obj(*args)
        _meter().step()
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # str.format comes wrapped
        _check_call(getattr(__obj, "__name__", ""), args if owner is None else (owner, *args), kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def metered_step(self) -> str:
        return _meter().step()

    def metered_concat(self, *values: Any) -> str:
        _size(*values)
        return "".join(map(str, values))

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_AddMeters().visit(source), *args, **kwargs)


def _finalize(value: Any) -> Any:
    """Count everything that a template prints, also into blocks that it keeps as strings."""
    _meter().output(_size(value))
    return value


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _lipsum(*args: Any, **kwargs: Any) -> str:
    raise SecurityError("lipsum is not available in chat templates")


@functools.cache
def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, finalize=_finalize, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.filters = {name: _metered_filter(name, f) for name, f in environment.filters.items()}
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, lipsum=_lipsum)
    return environment


@functools.lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def run_template(source: str, variables: Mapping[str, Any]) -> str:
    """Return the text that a template makes of variables.

    Raises jinja2.TemplateError and its kinds (TemplateRefusal for the template's own refusal, SecurityError for unsafe
    access or a limit), or whatever a faulty expression raises.
    """
    token = _current.set(_Meter())
    try:
        pieces: list[str] = []
        size = 0
        for piece in _compile(source).generate(**variables):
            pieces.append(piece)
            size += len(piece)
            _check_size(size)
        return "".join(pieces)
    finally:
        _current.reset(token)
