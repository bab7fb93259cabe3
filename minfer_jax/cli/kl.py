"""How far a quantisation is from a reference: KL divergence of the next token.

As llama-perplexity --kl-divergence measures it: the text in separate chunks of N tokens (512), of which the second half
counts. Beside the divergence in nats: how often both find the same token likeliest, the perplexity of both and its
ratio, and by how much the probability of the text's own tokens differs.

The reference is another model (--reference MODEL with FILE), or what one has left in a file: --save PATH writes the
distributions of MODEL over FILE, which --reference PATH then compares with any other, without the model and the text;
a file of llama-perplexity --kl-divergence-base does, too.
With both, --save PATH keeps those of the reference, which is freed before MODEL is loaded and compared with the file.
"""

import argparse
from pathlib import Path
from typing import Any

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table, read_text
from minfer_jax.files import check_target
from minfer_jax.model import Model
from minfer_jax.scoring import KLDivergence, Perplexity, kl_divergence, save_reference
from minfer_jax.scoring.reference_file import is_reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", help='text in UTF-8; "-" for stdin')
    parser.add_argument("--reference", metavar="MODEL|PATH", help="a model as MODEL is one, or a saved reference")
    parser.add_argument("--save", metavar="PATH", help="write the distributions of the reference, or of MODEL, there")
    parser.add_argument("--n-ctx", type=int, metavar="N", help="tokens of a chunk, at most the model's own")
    parser.add_argument("--max-chunks", type=int, metavar="N", help="read no more than N chunks")
    options.add_parse_special(parser)
    options.add_loading(parser, n_ctx=False)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    given, target = args.reference, args.save
    is_saved = given is not None and is_reference(given)
    if target is not None:
        check_target(target, *(Path(name) for name in (args.model, args.file, given) if name is not None))
    if is_saved and target is not None:
        options.wrong_usage(args, "--save has nothing to write: the reference is a saved one")
    if args.file is None and not is_saved:
        options.wrong_usage(args, f"give FILE: {given} is no saved reference, which alone knows its text")
    text = "" if args.file is None else read_text(args.file)
    how = {"max_chunks": args.max_chunks, "parse_special": args.parse_special}
    if given is None:
        if target is None:
            options.wrong_usage(args, "give --reference, or --save to make one")
        model = options.load_model(args)
        _show(args, save_reference(model, text, target, args.n_ctx, **how), {"model": model.identity()})
        return 0
    reference: Model | str = given if is_saved else options.load_model(args, name=given)
    if isinstance(reference, Model) and target is not None:
        save_reference(reference, text, target, args.n_ctx, **how)
        reference = target
    model = options.load_model(args)
    _show(args, kl_divergence(model, reference, None if args.file is None else text, args.n_ctx, **how), {})
    return 0


def _show(args: argparse.Namespace, result: KLDivergence | Perplexity, more: dict[str, Any]) -> None:
    if args.json:
        print_json(result.to_dict() | more)
    else:
        print_table(result.facts().items())
