"""Perplexity of a text file.

By one of two protocols, whose numbers do not compare with each other.

llama.cpp: separate chunks of N tokens (512), of which the second half is scored, as llama-perplexity does.
rolling: every token is scored once, in windows of N tokens (the model's own), as lm-evaluation-harness does.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table, read_text
from minfer_jax.scoring import perplexity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("file", metavar="FILE", help='text in UTF-8; "-" for stdin')
    parser.add_argument(
        "--protocol", choices=("llama.cpp", "rolling"), default="llama.cpp", help="(default: %(default)s)"
    )
    parser.add_argument("--n-ctx", type=int, metavar="N", help="tokens of a chunk or window, at most the model's own")
    parser.add_argument("--max-chunks", type=int, metavar="N", help="read no more than N chunks (llama.cpp only)")
    options.add_parse_special(parser)
    options.add_loading(parser, n_ctx=False)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    text = read_text(args.file)
    model = options.load_model(args)
    result = perplexity(
        model, text, args.n_ctx, args.protocol, max_chunks=args.max_chunks, parse_special=args.parse_special
    )
    if args.json:
        print_json(result.to_dict() | {"model": model.provenance})
    else:
        print_facts(result.to_dict())
    return 0


def print_facts(facts: dict[str, Any], percent: Sequence[str] = ()) -> None:
    """A table of facts by name; a standard error, X_error (of the first, standard_error), goes behind its value.
    percent: names of those that get a sign."""
    first = next(iter(facts))
    errors = {name: f"{name}_error" for name in facts} | {first: "standard_error"}
    rows = []
    for name, value in facts.items():
        if value is None or name in errors.values():
            continue
        shown = _shown(value)
        if (error := facts.get(errors[name])) is not None:
            shown += f" +/- {_shown(error)}"
        rows.append((name.replace("_", " "), shown + " %" * (name in percent)))
    print_table(rows)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) >= 0.1 or value == 0 else f"{value:.4g}"
    return str(value)
