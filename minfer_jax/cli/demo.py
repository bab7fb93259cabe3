"""Score and generate with a small real model.

The model is fetched when first needed (98 MB).
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minfer_jax.cli import options
from minfer_jax.cli.score import print_tokens
from minfer_jax.cli.text import print_json, print_table, write
from minfer_jax.display.text import quoted
from minfer_jax.generation import stream
from minfer_jax.hub import resolve
from minfer_jax.load import load
from minfer_jax.sampling import Sampler
from minfer_jax.scoring import multiple_choice_batch, score_texts

_QUESTIONS = (
    ("The capital of Japan is", (" Tokyo", " Kyoto", " Seoul", " Beijing")),
    ("Bees make", (" honey", " milk", " bread", " glass")),
    ("The largest planet in the solar system is", (" Jupiter", " Saturn", " Mars", " Venus")),
    ("Ice melts and becomes", (" water", " stone", " fire", " sand")),
    ("The first month of the year is", (" January", " March", " July", " December")),
)
_TEXT = "The cat sat on the mat and licked its telescope."
_PROMPT = "The sky is blue because"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m", metavar="MODEL", help="another model (default: %(default)s)")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    seconds: dict[str, float] = {}
    say = (lambda text: None) if args.json else write

    with _timed(seconds, "fetch"):
        path = resolve(args.model)
    with _timed(seconds, "load"):
        model = load(path)
    say(f"Model: {path.name}, {model.config.arch}, {model.provenance['bytes'] / 1e6:.0f} MB\n\n")

    with _timed(seconds, "choices"):
        answers = multiple_choice_batch(model, _QUESTIONS, progress=False)
    if not args.json:
        say("What does the model take to be true? Log-probability of each continuation, the first one is right:\n\n")
        print_table(_choice_row(answer) for answer in answers)
        say(f"\n{sum(answer.best_by_sum == 0 for answer in answers)} of {len(answers)} right\n\n")

    with _timed(seconds, "text"):
        text = score_texts(model, [_TEXT], progress=False)[0]
    if not args.json:
        say("How surprising is a text, token by token? The first has nothing before it.\n\n")
        print_tokens(model, text.tokens, text.token_logprobs)

    say(f"How does it go on, always with the likeliest token?\n\n{_PROMPT}")
    with (
        _timed(seconds, "generate"),
        stream(model, _PROMPT, max_tokens=40, sampler=Sampler(temperature=0)) as pieces,
    ):
        for piece in pieces:
            say(piece)
    result = pieces.result
    assert result is not None  # the pieces have run out
    say("\n\n")

    if args.json:
        parts = {"choices": [answer.to_dict() for answer in answers], "text": text.to_dict()}
        print_json(parts | {"generation": result.to_dict(), "seconds": seconds, "model": model.provenance})
    else:
        n_choices = sum(len(answer.choices) for answer in answers)
        counts = {"choices": n_choices, "text": len(text.tokens), "generate": len(result.tokens)}
        units = {"choices": "choices scored", "text": "tokens scored", "generate": "tokens generated"}
        print_table(
            (f"{name}", f"{value:6.2f} s", f"{counts[name]} {units[name]}" if name in counts else "")
            for name, value in seconds.items()
        )
        say("\nCompiled programs are kept: times of a first run hold their compilation, later ones do not.\n")
    return 0


def _choice_row(answer: Any) -> tuple[str, ...]:
    cells = [f"{choice.strip()} {value:.2f}" for choice, value in zip(answer.choices, answer.sums, strict=True)]
    return (quoted(answer.context), *cells)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - begin, 3)
