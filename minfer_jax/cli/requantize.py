"""Write a model in another quantisation.

Matrices become the type that --type names, the head (or the embedding that is one) Q8_0 if that has more bits; all
else stays as it is, metadata and tokenizer included. The file is whole or not there, and IN is never touched.

What the quantisation of IN has lost stays lost: start from the largest file there is.
"""

import argparse

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table
from minfer_jax.gguf.requantize import requantize, writable_types


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser, "IN")
    parser.add_argument("output", metavar="OUT", help="the .gguf file to write; one that is there is replaced")
    parser.add_argument("--type", required=True, metavar="NAME", help="of the matrices: " + ", ".join(writable_types()))
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    file = requantize(args.model, args.output, args.type)
    facts = {
        "file": args.output,
        "bytes": file.size,
        "parameters": file.n_parameters,
        "bits_per_weight": file.bits_per_weight,
        "quantisation": file.type_counts(),
        "sha256": file.sha256(),
    }
    if args.json:
        print_json(facts)
    else:
        facts["quantisation"] = ", ".join(f"{count} {name}" for name, count in file.type_counts().items())
        print_table((name.replace("_", " "), value) for name, value in facts.items())
    return 0
