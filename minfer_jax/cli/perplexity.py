"""Perplexity of a text file.

By one of two protocols, whose numbers do not compare with each other.

llama.cpp: separate chunks of N tokens (512), of which the second half is scored, as llama-perplexity does.
rolling: every token is scored once, in windows of N tokens (the model's own), as lm-evaluation-harness does.
"""

import argparse

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
        print_json(result.to_dict() | {"model": model.identity()})
    else:
        print_table(result.facts().items())
    return 0
