"""The command line: ``minfer-jax COMMAND``. Results go to stdout, everything else to stderr.

Exit codes: 0 fine, 1 an error that one line on stderr explains, 2 wrong usage, 130 interrupted, 141 nobody reads the
output any more.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from minfer_jax import __version__
from minfer_jax.cli import bench, chat, demo, dot, eval, generate, info, kl, perplexity, requantize, score, trace
from minfer_jax.display.text import printable
from minfer_jax.errors import MinferError

_COMMANDS = {
    "info": info,
    "score": score,
    "perplexity": perplexity,
    "kl": kl,
    "requantize": requantize,
    "generate": generate,
    "chat": chat,
    "eval": eval,
    "bench": bench,
    "trace": trace,
    "dot": dot,
    "demo": demo,
}
_INTERRUPTED, _NO_READER = 130, 141  # as a shell tells the signals SIGINT and SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` without the program's name, None: the process's own.

    Wrong usage and ``--help`` end in SystemExit, as argparse does.
    """
    args, unknown = build_parser().parse_known_args(argv)
    if unknown and "unknown" not in args:
        args.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    args.unknown = unknown
    interrupts: list[int] = []
    try:
        with _log_lines(args.verbose), _noting(interrupts):
            return args.run(args)
    except KeyboardInterrupt:
        _complain("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        return _NO_READER
    except Exception as error:
        if interrupts:  # which a library made another error of
            _complain("interrupted")
            return _INTERRUPTED
        if isinstance(error, MinferError):
            _complain("error: " + " ".join(str(error).split("\n")))
            return 1
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            _complain(f"error: out of memory: {str(error).splitlines()[0]}; ask for less at once")
            return 1
        raise
    finally:
        _settle_stdout()


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``args.run(args)`` then does the work."""
    parser = argparse.ArgumentParser(
        prog="minfer-jax", description="Exact log-probabilities and generation from GGUF model files."
    )
    parser.add_argument("--version", action="version", version=f"minfer-jax {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or name).split("\n")[0].rstrip(".")  # python -OO has no docstrings
        command = commands.add_parser(
            name,
            help=summary[0].lower() + summary[1:],
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, command=command)
    return parser


@contextlib.contextmanager
def _noting(interrupts: list[int]) -> Iterator[None]:
    """Each Ctrl-C is noted before it is raised."""

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # the program around this has its own
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _log_lines(verbosity: int) -> Iterator[None]:
    """The package's log as lines on stderr: warnings, with -v information, with -vv all."""
    logger = logging.getLogger("minfer_jax")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("minfer-jax: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Lines(logging.Formatter):
    """Messages without commands to the terminal, which a file's name may hold."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


def _settle_stdout() -> None:
    """Let what can no longer be written go nowhere: the interpreter's last flush would fail on it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(line: str) -> None:
    print(f"minfer-jax: {printable(line)}", file=sys.stderr)
