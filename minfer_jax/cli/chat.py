"""Talk to a model through its chat template.

On a terminal: line by line with history. /clear forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an
answer. When stdin is a pipe or a file, all of it is one message and the answer is printed.
"""

import argparse
import sys
from typing import Any

from minfer_jax.cli import options
from minfer_jax.cli.generate import show
from minfer_jax.cli.text import print_json, read_text
from minfer_jax.errors import ArgumentError, ChatTemplateError, ContextLengthError, TokenizerError
from minfer_jax.generation import Generation, stream
from minfer_jax.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--template", metavar="FILE", help="Jinja chat template to use instead of the model's own")
    options.add_generation(parser, max_tokens=-1)
    options.add_loading(parser)
    options.add_output(parser, "print each answer as one line of JSON")


def run(args: argparse.Namespace) -> int:
    interactive = sys.stdin.isatty()
    arguments = options.generation_arguments(args)
    template = read_text(args.template) if args.template else None
    question = None if interactive else read_text("-").strip()
    if question == "":
        raise ArgumentError("stdin holds no message; write one, or start the command on a terminal")
    model = options.load_model(args, args.n_ctx)
    if template is None and model.tokenizer.chat_template is None:
        raise ChatTemplateError(
            f"{model.file.name}: the file has no chat template; give one with --template FILE (Jinja source), or "
            "continue plain text with `minfer-jax generate`"
        )
    chat = Chat(model, args.system, template, arguments, args.json)
    if question is not None:
        chat.answer(question)
    else:
        _converse(chat)
    return 0


class Chat:
    """A conversation: messages so far, and how the next answer is made and shown."""

    def __init__(
        self, model: Model, system: str | None, template: str | None, arguments: dict[str, Any], as_json: bool
    ) -> None:
        self._model = model
        self._template = template
        self._arguments = arguments
        self._as_json = as_json
        self._first: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._first)

    def clear(self) -> None:
        """Forget all but the system message."""
        self.messages = list(self._first)

    def answer(self, question: str) -> Generation:
        """Print the answer to a question; both become part of the conversation once the answer is whole."""
        messages = [*self.messages, {"role": "user", "content": question}]
        prompt = self._model.tokenizer.encode_chat(messages, template=self._template)
        with stream(self._model, prompt, **self._arguments) as pieces:
            result = show(pieces, quiet=self._as_json)
        if self._as_json:
            print_json(result.to_dict() | {"model": self._model.provenance})
        self.messages = [*messages, {"role": "assistant", "content": result.text}]
        return result


def _converse(chat: Chat) -> None:
    _enable_line_editing()
    while True:
        try:
            line = _prompt()
        except EOFError:
            print(file=sys.stderr)
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            chat.clear()
        elif line.startswith("/"):
            print("commands: /clear /exit", file=sys.stderr)
        elif line:
            _answer(chat, line)


def _prompt() -> str:
    if sys.stdout.isatty():
        return input("> ").strip()
    print("> ", end="", file=sys.stderr, flush=True)  # stdout is for answers
    return input().strip()


def _answer(chat: Chat, line: str) -> None:
    """Answer; what goes wrong with one message does not end the conversation."""
    try:
        chat.answer(line)
    except KeyboardInterrupt:
        print("minfer-jax: stopped; this exchange is forgotten", file=sys.stderr)
    except ContextLengthError as error:
        print(f"minfer-jax: {error} (/clear starts afresh)", file=sys.stderr)
    except (ChatTemplateError, TokenizerError) as error:
        print(f"minfer-jax: {error}", file=sys.stderr)


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401 - importing it gives input() its editing keys and history
    except ImportError:  # not on every platform
        return
