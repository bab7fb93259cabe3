"""Options that several commands share, and what they turn into."""

import argparse
import dataclasses
from typing import Any, NoReturn

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.hub import KNOWN_MODELS
from minfer_jax.load import load
from minfer_jax.model import Model
from minfer_jax.sampling import Sampler

# Type and meaning by field of Sampler, which owns the defaults and the limits.
_SAMPLER_OPTIONS: dict[str, tuple[type, str]] = {
    "temperature": (float, "0 always takes the likeliest token"),
    "top_k": (int, "draw among this many likeliest tokens; 0: all"),
    "top_p": (float, "draw among the likeliest tokens that hold this probability together; 1: all"),
    "min_p": (float, "leave out tokens less likely than this times the likeliest; 0: none"),
    "repetition_penalty": (float, "divide the logits of tokens seen in prompt or output; 1: off"),
    "frequency_penalty": (float, "subtract this from a logit for each time the token is in the output; 0: off"),
    "presence_penalty": (float, "subtract this once if the token is in the output; 0: off"),
    "seed": (int, "makes the text reproducible (default: a fresh one)"),
}
_MAX_BATCH = 1 << 16


def wrong_usage(args: argparse.Namespace, message: str) -> NoReturn:
    """End as argparse does for options that do not fit together."""
    command: argparse.ArgumentParser = args.command
    command.error(message)


def add_output(parser: argparse.ArgumentParser, json_help: str = "print one JSON document") -> None:
    """--json and --verbose."""
    parser.add_argument("--json", action="store_true", help=json_help)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more on stderr; -vv says all")


def add_model(parser: argparse.ArgumentParser, metavar: str = "MODEL") -> None:
    """MODEL, or by whatever name."""
    parser.add_argument(
        "model",
        metavar=metavar,
        help="a .gguf file, any part of a split one or its folder; hf:org/repo:file.gguf; or a known name: "
        + ", ".join(KNOWN_MODELS),
    )


def add_parse_special(parser: argparse.ArgumentParser) -> None:
    """--parse-special."""
    parser.add_argument(
        "--parse-special",
        action="store_true",
        help="read control tokens such as <|im_end|> in a text as such, not as plain text",
    )


def add_loading(parser: argparse.ArgumentParser, n_ctx: bool = True) -> None:
    """How MODEL is loaded. n_ctx: whether its context window is an option."""
    group = parser.add_argument_group("loading")
    group.add_argument(
        "--implementation",
        metavar="NAME",
        help="ffi: packed weights, native kernels (default on a CPU where they were built); pallas: GPU kernels "
        "(default on an H100 or H200); dense: weights expanded at load (default elsewhere); xla: packed, no kernels",
    )
    group.add_argument("--precision", metavar="NAME", help="default, or exact (float32 inputs of products)")
    group.add_argument("--dtype", metavar="NAME", help="of expanded weights, so dense: float32, float16, bfloat16")
    if n_ctx:
        group.add_argument("--n-ctx", type=int, metavar="N", help="context window in tokens (default: as in training)")
    group.add_argument("--pre", metavar="NAME", help="pre-tokenizer to use instead of the one the file names")


def add_batch(parser: argparse.ArgumentParser) -> None:
    """--batch."""
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences side by side (default: 1)")


def batch_size(args: argparse.Namespace) -> int:
    """The number that --batch gives. Raises ArgumentError naming it."""
    batch = check_integer("batch", args.batch, 1)
    if batch > _MAX_BATCH:
        raise ArgumentError(f"batch is {batch}; give at most {_MAX_BATCH}")
    return batch


def load_model(args: argparse.Namespace, n_ctx: int | None = None, name: str | None = None) -> Model:
    """The model that ``args`` ask for, or another loaded in the same way; n_ctx: its context window, None: as in
    training."""
    return load(args.model if name is None else name, **loading(args, n_ctx))


def loading(args: argparse.Namespace, n_ctx: int | None = None) -> dict[str, Any]:
    """Keyword arguments of ``load`` from the options of :func:`add_loading`."""
    given = {name: getattr(args, name) for name in ("implementation", "dtype", "precision", "pre")}
    return given | {"n_ctx": n_ctx}


def add_generation(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """How much is generated and how tokens are drawn."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help="most tokens to generate; -1: until the context is full (default: %(default)s)",
    )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given repeatedly"
    )
    defaults = {field.name: field.default for field in dataclasses.fields(Sampler)}
    for name, (kind, meaning) in _SAMPLER_OPTIONS.items():
        shown = "" if defaults[name] is None else f" (default: {defaults[name]})"
        option = "--" + name.replace("_", "-")
        group.add_argument(option, type=kind, metavar="N" if kind is int else "X", help=meaning + shown)


def generation_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of ``generate`` and ``stream`` from the options of :func:`add_generation`."""
    given = {name: getattr(args, name) for name in _SAMPLER_OPTIONS if getattr(args, name) is not None}
    return {"max_tokens": args.max_tokens, "stop": args.stop, "sampler": Sampler(**given)}
