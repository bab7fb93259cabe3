"""Show what every program call costs, and where the time of a decode step goes.

Generates after a prompt of random tokens in portions of many, scores the prompt, and generates again with the logits
on the host at every step. All of it happens three times, so that shapes that differ from their bucket are promoted.
Every program is waited for to tell its device time apart, which takes longer than `generate` does.

Times are in microseconds: of calls the median (--json has every single record), of a decode step the mean of the middle
half of all steps, so that its parts add up. dispatch: until the call returns to Python (on CPU
a small program has run by then). device: from then until its results are there. readback: bringing them to the host.
sampling: from the logits on the host to the token there. other: the rest, Python's own work.

A program is named by its shape: b rows, t tokens in each, o rows that go through the head, c length of the KV cache,
x32 tokens per call. bucket: the padded program that serves a shape at first; promoted: its own, from the third run.
splits: stretches of device work between two stops at the host. kernels: launches of device work, in a loop of unknown
length those of one round.
"""

import argparse
from collections.abc import Iterable
from itertools import groupby
from statistics import median
from typing import Any

from minfer_jax.arguments import check_integer
from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table, write
from minfer_jax.profiling.breakdown import Breakdown, trace_work
from minfer_jax.runtime import Runtime, TraceRecord

_PARTS = ("dispatch", "device", "readback", "sampling", "other", "total")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--tokens", type=int, default=20, metavar="N", help="tokens of the prompt (default: 20)")
    parser.add_argument("--gen", type=int, default=64, metavar="N", help="tokens to generate (default: 64)")
    options.add_loading(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    n_prompt, n_gen = check_integer("tokens", args.tokens, 1), check_integer("gen", args.gen, 2)
    runtime = Runtime(options.load_model(args, args.n_ctx), promotion="blocking")
    traced = trace_work(runtime, n_prompt, n_gen)
    if args.json:
        print_json(traced.to_dict() | {"graph": runtime.graph_uid, "model": runtime.provenance})
        return 0
    write(f"graph {runtime.graph_uid}\n\n")
    print_table(
        _rows(traced.records),
        header=(
            *("program call", "run", "served by", "splits", "kernels"),
            *("dispatch us", "device us", "readback us", "bytes"),
        ),
    )
    write("\n")
    print_table(
        [("logits on the host", *_cells(traced.step)), ("many tokens a call", *_cells(traced.token))],
        header=("decode step", *(f"{part} us" for part in _PARTS)),
    )
    return 0


def _rows(records: Iterable[TraceRecord]) -> Iterable[tuple[Any, ...]]:
    """A row for each stretch of calls of one shape by one program."""
    for _, stretch in groupby(records, lambda record: (record.key, record.program, record.promoted)):
        calls = list(stretch)
        first, last = calls[0], calls[-1]
        shape = first.key.partition("/")[2]
        yield (
            shape,
            f"{first.run}" if first is last else f"{first.run}-{last.run}",
            "promoted" if first.promoted else "bucket" if first.program == shape else f"bucket {first.program}",
            first.splits,
            first.kernels,
            *(_median(getattr(call, name) for call in calls) for name in ("dispatch_us", "device_us", "readback_us")),
            first.readback_bytes,
        )


def _cells(breakdown: Breakdown) -> list[int | None]:
    values = (getattr(breakdown, f"{part}_us") for part in _PARTS)
    return [None if value is None else round(value) for value in values]


def _median(values: Iterable[float | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None
