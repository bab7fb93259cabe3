"""Tasks of lm-evaluation-harness.

MODEL comes first. All options but those below go to the harness as they are: --tasks arc_easy,hellaswag,
--num_fewshot 5, --limit 100, --apply_chat_template, --gen_kwargs, --include_path, --output_path, --log_samples,
--use_cache and so on ("lm-eval run --help" tells them). More arguments of the model go as --model_args
batch_tokens=4096 max_gen_toks=128.
"""

import argparse
import contextlib
import functools
import importlib
import io
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, write
from minfer_jax.errors import MinferError, UnsupportedError

log = logging.getLogger("minfer_jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "minfer-jax eval MODEL --tasks TASK[,TASK ...] [options of the harness] [options]"
    parser.set_defaults(unknown=[])  # what this parser does not know is the harness's
    parser.allow_abbrev = False
    options.add_model(parser)
    options.add_loading(parser)
    options.add_output(parser, "print the harness's results as one JSON document")


def run(args: argparse.Namespace) -> int:
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("-M", "--model")
    own.add_argument("-t", "--tasks", nargs="+")
    own.add_argument("-C", "--config")
    own.add_argument("-o", "--output_path")
    given, _ = own.parse_known_args(args.unknown)
    if given.model is not None:
        options.wrong_usage(args, "--model is always minfer_jax here; give the file as MODEL, before all options")
    if not any(given.tasks or ()) and given.config is None:
        options.wrong_usage(args, "--tasks is missing; lm-eval ls tasks shows them")
    names = ("n_ctx", "implementation", "dtype", "precision", "pre")
    loading = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    model_args = json.dumps({"pretrained": args.model} | loading)
    arguments = ["run", "--model", "minfer_jax", "--model_args", model_args, "--batch_size", "auto", *args.unknown]
    with tempfile.TemporaryDirectory() as folder:
        if args.json and given.output_path is None:
            arguments += ["--output_path", folder]
        # What the harness prints is written by our rules, for any encoding of stdout; beside JSON it has no place.
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            _run_harness(arguments, args.verbose)
        if args.json:
            print_json(_results(Path(given.output_path or folder)))
        else:
            write(printed.getvalue())
    return 0


def _run_harness(arguments: list[str], verbosity: int) -> None:
    """The harness's own command, its log among ours. Its errors are one line; all they say is in the log with -vv."""
    try:
        from lm_eval._cli import HarnessCLI

        importlib.import_module("minfer_jax.integrations.lm_eval")  # which registers the model
    except ImportError as error:
        raise UnsupportedError(f"the evaluation harness cannot be imported ({error}); pip install lm_eval") from error
    # Its bootstrap of errors forks, which a process with JAX's threads must not.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    try:
        with _process_arguments(["lm-eval", *arguments]), _harness_log(verbosity), _bars_on_terminals_only():
            command = HarnessCLI()
            command.execute(command.parse_args())
    except (MinferError, MemoryError, BrokenPipeError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # unknown tasks, data that cannot be fetched, a metric's missing package, ...
        log.debug("the harness failed", exc_info=True)
        what = " ".join(str(error).split()) or "no reason given"
        raise MinferError(f"the harness failed: {type(error).__name__}: {what:.500} (-vv shows where)") from error


@contextlib.contextmanager
def _process_arguments(arguments: list[str]) -> Iterator[None]:
    """The harness reads the process's own arguments."""
    before = sys.argv
    sys.argv = arguments
    try:
        yield
    finally:
        sys.argv = before


@contextlib.contextmanager
def _harness_log(verbosity: int) -> Iterator[None]:
    """Lines of the harness's log where those of ours go: warnings, with -v information, with -vv all."""
    logger = logging.getLogger("lm_eval")
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = log.handlers, False
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.propagate, logger.handlers = before[1:]


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """The harness and the library that reads its data show their progress bars, as ours, on a terminal."""
    before = tqdm.__init__
    tqdm.__init__ = functools.partialmethod(before, disable=None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        tqdm.__init__ = before


def _results(path: Path) -> Any:
    """The newest results that the harness wrote below --output_path."""
    folder, pattern = (path.parent, f"{path.stem}_*.json") if path.suffix == ".json" else (path, "**/results_*.json")
    found = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
    if not found:
        raise MinferError(f"{path}: the harness wrote no results there; run it with -vv")
    return json.loads(found[-1].read_text(encoding="utf-8"), parse_constant=lambda _: None)  # JSON knows no NaN
