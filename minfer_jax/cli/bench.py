"""Measure tokens per second, in the vocabulary of llama-bench.

pp512: 512 tokens of a prompt, of which only the last one's logits are computed. tg128: 128 tokens generated one after
another, chosen greedily on the device and brought to the host many at a time. "@ d4096": behind 4096 tokens that are
in the KV cache already. Tokens are random; tokenisation is not measured, and no other sampling.

Every test runs three times before those that count, so that all is compiled and promoted. compile: the seconds which
that took, or reading from disk; from disk: how many of the programs were there. bandwidth: bytes that a generated token
must read (weights as they lie in memory, keys and values up to its position) per second, against a large copy on the
same device in the same run. kernels: launches of device work, in one step of tg, in the whole of pp.

Unlike llama-bench: MODEL is positional; --batch puts sequences side by side (t/s is of all together); tg includes the
choice of the likeliest token; "weights" says how they are kept, "size" is the file's.
"""

import argparse
import itertools
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from minfer_jax.arguments import check_integer
from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, write
from minfer_jax.errors import ArgumentError
from minfer_jax.model import Model
from minfer_jax.native import library
from minfer_jax.profiling.bench import UNTIMED, BenchCase, Measurement, measure
from minfer_jax.profiling.device import copy_bandwidth, device_name
from minfer_jax.profiling.workload import check_room
from minfer_jax.progress import progress_bar
from minfer_jax.runtime import Runtime

_COLUMNS = {
    "size": ">11",
    "params": ">10",
    "backend": ">7",
    "weights": ">8",
    "batch": ">5",
    "test": ">14",
    "t/s": ">20",
    "bandwidth": ">9",
    "kernels": ">7",
    "compile": ">8",
    "from disk": ">9",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    for letter, name, default, meaning in (
        ("-p", "n-prompt", "512", "tokens of a prompt"),
        ("-n", "n-gen", "128", "tokens to generate"),
        ("-d", "n-depth", "0", "tokens in the KV cache before"),
    ):
        text = f"{meaning}; several with commas (default: %(default)s)"
        parser.add_argument(letter, f"--{name}", default=default, metavar="N,..", help=text)
    options.add_batch(parser)
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="timed runs (default: 5)")
    parser.add_argument("-o", "--output", choices=("md", "jsonl", "json"), default="md", help="(default: md)")
    options.add_loading(parser)
    options.add_output(parser, "the same as --output json")


def run(args: argparse.Namespace) -> int:
    repetitions = check_integer("repetitions", args.repetitions, 1)
    tests = _tests(args)
    model = options.load_model(args, args.n_ctx)
    for test in tests:
        check_room(model.config, test.depth + test.n_prompt + test.n_gen)
    output = "json" if args.json else args.output
    runtime = Runtime(model, promotion="blocking")
    copying = copy_bandwidth()
    facts = _facts(model, copying)
    lines: list[dict[str, Any]] = []
    if output == "md":
        write(_header(model))
    with progress_bar("benchmark", len(tests) * (UNTIMED + repetitions), "run") as bar:
        for test in tests:
            measured = measure(runtime, test, repetitions, bar.update)
            share = None if measured.bandwidth is None else 100 * measured.bandwidth / copying
            about = {"test_time": datetime.now(UTC).isoformat(timespec="seconds"), "bandwidth_pct": share}
            lines.append(facts | measured.to_dict() | about)
            with bar.external_write_mode():
                if output == "jsonl":
                    print_json(lines[-1])
                elif output == "md":
                    write(_row(model, measured, share))
    if output == "json":
        print_json(lines)
    elif output == "md":
        write(f"\n{facts['device']}, copies {copying / 1e9:.1f} GB/s\n")
    return 0


def _tests(args: argparse.Namespace) -> list[BenchCase]:
    batch = options.batch_size(args)
    prompts, gens, depths = (_numbers(args, name) for name in ("n_prompt", "n_gen", "n_depth"))
    sizes = [(n, 0) for n in prompts if n] + [(0, n) for n in gens if n]
    if not sizes:
        options.wrong_usage(args, "nothing to measure: give --n-prompt or --n-gen a number above 0")
    return [BenchCase(*size, depth, batch) for depth, size in itertools.product(depths, sizes)]


def _numbers(args: argparse.Namespace, name: str) -> list[int]:
    text = getattr(args, name)
    try:
        return [check_integer(name, int(part), 0) for part in text.split(",")]
    except ValueError:  # an ArgumentError is one
        raise ArgumentError(f"{name} is {text!r}; give integers of at least 0, with commas between them") from None


def _facts(model: Model, copying: float) -> dict[str, Any]:
    """What all lines have in common."""
    about = model.provenance
    return {
        "model_filename": model.file.name,
        "model_size": model.file.size,
        "model_n_params": model.file.n_parameters,
        **{name: about[name] for name in ("architecture", "quantisation", "implementation", "dtype", "backend")},
        "precision": about.get("precision"),
        "instruction_set": about.get("instruction_set"),
        "device": device_name(),
        "copy_bandwidth": copying,
        "versions": about["versions"],
        "build": {"python": platform.python_version(), "system": platform.platform(), "native": library() is not None},
    }


def _header(model: Model) -> str:
    widths = (int(alignment[1:]) for alignment in _alignments(model))
    rule = ("-" * (width - 1) + (":" if i else "-") for i, width in enumerate(widths))
    return _markdown(model, ["model", *_COLUMNS]) + _markdown(model, rule)


def _row(model: Model, measured: Measurement, share: float | None) -> str:
    cells = [
        model.file.name,
        f"{model.file.size / 2**20:.2f} MiB",
        f"{model.file.n_parameters / 1e6:.2f} M",
        model.provenance["backend"],
        model.provenance["dtype"],
        measured.batch,
        measured.test,
        f"{measured.avg_ts:.2f} ± {measured.stddev_ts:.2f}",
        "-" if share is None else f"{share:.1f} %",
        measured.kernels,
        f"{measured.compile_s:.1f} s",
        f"{measured.programs_from_disk} of {measured.programs}",
    ]
    return _markdown(model, cells)


def _markdown(model: Model, cells: Iterable[object]) -> str:
    padded = (f"{cell:{alignment}}" for cell, alignment in zip(cells, _alignments(model), strict=True))
    return f"| {' | '.join(padded)} |\n"


def _alignments(model: Model) -> list[str]:
    return [f"<{len(model.file.name)}", *_COLUMNS.values()]
