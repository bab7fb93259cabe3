"""Continue a prompt.

The text goes to stdout piece by piece as it is generated. The prompt itself is not repeated. With "-" it is read from
stdin, without the line end that closes it.
"""

import argparse
import logging
import time

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, read_text, write
from minfer_jax.generation import Generation, TextStream, stream

log = logging.getLogger("minfer_jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", help='text to continue, or "-" for stdin')
    options.add_parse_special(parser)
    options.add_generation(parser, max_tokens=256)
    options.add_loading(parser)
    options.add_output(parser, "print one JSON document when all is generated")


def run(args: argparse.Namespace) -> int:
    arguments = options.generation_arguments(args)
    prompt = read_text("-").removesuffix("\n").removesuffix("\r") if args.prompt == "-" else args.prompt
    model = options.load_model(args, args.n_ctx)
    with stream(model, prompt, parse_special=args.parse_special, **arguments) as pieces:
        result = show(pieces, quiet=args.json)
    if args.json:
        print_json(result.to_dict() | {"model": model.provenance})
    return 0


def show(pieces: TextStream, quiet: bool = False) -> Generation:
    """Write a stream to stdout unless ``quiet``, with a line end behind it whatever stops it; give its result."""
    begin = time.perf_counter()
    try:
        for piece in pieces:
            if not quiet:
                write(piece)
    finally:
        if not quiet:
            write("\n")
    result = pieces.result
    assert result is not None  # the pieces have run out
    seconds = time.perf_counter() - begin
    log.info(
        "%d tokens after %d of prompt in %.2f s (%.1f per second), finish reason: %s",
        len(result.tokens),
        result.n_prompt,
        seconds,
        len(result.tokens) / seconds,
        result.finish_reason,
    )
    return result
