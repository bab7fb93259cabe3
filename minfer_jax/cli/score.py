"""Log-probabilities of given text.

Natural logarithms, one value per token.

One request comes from options: --context with one --continuation, or with several as a multiple choice; or --text.

Many are the rows of FILE: JSON lines, each an object with context and continuation, context and choices, or text, or
with fields that the column options name; id is handed through, the rest is ignored.

With --output they go to a file, in order, whatever their number. FILE and OUT can be Parquet, too. All rows are of one
form. Finished shards lie in OUT.parts until OUT is whole, and --resume goes on from them after any stop. Beside it:
OUT.manifest.json, what was scored by what; OUT.errors.jsonl, the rows that could not be scored, and why, which a line
on stderr counts; the exit code is 0 (with --strict, 1).

Without, FILE or stdin ("-") becomes JSON lines on stdout, in blocks of 512 rows, the last at the end of the input. A
bad row becomes {"row", "error"} there and a line on stderr; the rest is scored and the exit code is 1.

A continuation or choice after a word wants its leading space: " Paris".
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from itertools import islice
from pathlib import Path

from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table, write
from minfer_jax.display.text import printable, quoted
from minfer_jax.errors import MinferError
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.dataset import SHARD_ROWS, plan, run_here
from minfer_jax.scoring.dataset.json_lines import JsonLinesSource, as_fields, open_binary, read_json_lines
from minfer_jax.scoring.pairs import warn_of_merged
from minfer_jax.scoring.results import MultipleChoice, Score, TextScore
from minfer_jax.scoring.row_scores import Result, encode_row, score_rows
from minfer_jax.scoring.rows import BadRow, Columns, Row, as_row

_TOGETHER = 512  # rows read and scored at once
_COLUMNS = ("context", "continuation", "choices", "text", "id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", help='rows to score; "-" for JSON lines on stdin')
    parser.add_argument("--context", metavar="TEXT", help="what stands before the continuation; may be empty")
    parser.add_argument(
        "--continuation", metavar="TEXT", action="append", help="what is scored; several make a multiple choice"
    )
    parser.add_argument("--text", metavar="TEXT", help="score every token of a text")
    rows = parser.add_argument_group("rows of FILE")
    rows.add_argument("-o", "--output", metavar="OUT", help="write results to a file: .jsonl or .parquet")
    rows.add_argument("--resume", action="store_true", help="go on where an earlier run into OUT was stopped")
    rows.add_argument("--strict", action="store_true", help="stop at the first bad row")
    for name in _COLUMNS:
        rows.add_argument(f"--{name}-column", metavar="NAME", help=f"field that holds the {name} (default: {name})")
    rows.add_argument("--shard-rows", type=int, metavar="N", help=f"rows of a shard of OUT (default: {SHARD_ROWS})")
    ray = parser.add_argument_group(
        "OUT by a Ray cluster", "needs the extra ray; FILE and MODEL by paths that all nodes have"
    )
    ray.add_argument("--engine", choices=("local", "ray"), default="local", help="(default: %(default)s, this process)")
    ray.add_argument(
        "--workers", type=int, metavar="N", help="actors with the model (default: one for each GPU, or node)"
    )
    ray.add_argument(
        "--ray-address", metavar="ADDRESS", help="(default: RAY_ADDRESS, or a cluster that is started here)"
    )
    options.add_parse_special(parser)
    options.add_loading(parser)
    options.add_output(parser, "print one JSON document (rows on stdout are JSON lines always)")


def run(args: argparse.Namespace) -> int:
    if args.file is None or not args.context is args.continuation is args.text is None:
        return _run_one(args)
    return _run_rows(args) if args.output is None else _run_dataset(args)


def _run_one(args: argparse.Namespace) -> int:
    row = _request(args)
    model = options.load_model(args, args.n_ctx)
    (outcome,) = score_rows(model, [encode_row(model, row, args.parse_special)])
    if isinstance(outcome, BadRow):
        raise MinferError(outcome.reason)
    result = outcome[1]
    warn_of_merged(_merged(result), 1)
    if args.json:
        print_json(result.to_dict() | {"model": model.identity()})
    elif isinstance(result, MultipleChoice):
        print_table(result.rows(), result.HEADER)
    else:
        _print_result(model, result)
    return 0


def _request(args: argparse.Namespace) -> Row:
    """The one request that options make."""
    context, continuations = args.context, args.continuation
    if args.file is not None or (args.text is not None) + (context is not None or continuations is not None) != 1:
        options.wrong_usage(args, "give one of: FILE, --context with --continuation, --text")
    if args.output is not None or args.resume:
        options.wrong_usage(args, "--output and --resume are for the rows of FILE")
    if args.text is not None:
        return Row(1, "text", (args.text,))
    if context is None or continuations is None:
        options.wrong_usage(args, "--context and --continuation belong together")
    if len(continuations) == 1:
        return Row(1, "pair", (context, continuations[0]))
    return Row(1, "choices", (context, continuations))


def _columns(args: argparse.Namespace) -> Columns:
    named = {name: value for name in _COLUMNS if (value := getattr(args, f"{name}_column")) is not None}
    return Columns(**named)


def _run_dataset(args: argparse.Namespace) -> int:
    if args.file == "-":
        options.wrong_usage(args, "--output needs a FILE: rows of stdin go to stdout")
    if args.engine != "ray" and (args.workers, args.ray_address) != (None, None):
        options.wrong_usage(args, "--workers and --ray-address need --engine ray")
    shard_rows = SHARD_ROWS if args.shard_rows is None else args.shard_rows
    how = {"columns": _columns(args), "shard_rows": shard_rows, "parse_special": args.parse_special}
    if args.engine == "ray":
        from minfer_jax.integrations import ray_data  # an extra, and slow to import

        how |= {"resume": args.resume, "strict": args.strict, "workers": args.workers, "address": args.ray_address}
        with redirect_stdout(sys.stderr):  # where Ray tells of actors that died
            scores = ray_data.score_dataset(
                args.model, args.file, args.output, **how, **options.loading(args, args.n_ctx)
            )
    else:
        job = plan(args.file, args.output, **how)
        scores = run_here(options.load_model(args, args.n_ctx), job, args.resume, args.strict)
    print_json(scores.to_dict()) if args.json else print_table(scores.facts().items())
    return 0


def _run_rows(args: argparse.Namespace) -> int:
    if args.resume or args.engine != "local" or (args.shard_rows, args.workers, args.ray_address) != (None,) * 3:
        options.wrong_usage(args, "--resume, --shard-rows and the options of Ray need --output")
    if Path(args.file).suffix.lower() == ".parquet":
        options.wrong_usage(args, "a Parquet FILE needs --output")
    columns = _columns(args)
    with nullcontext(sys.stdin.buffer) if args.file == "-" else open_binary(Path(args.file)) as lines:
        total = _count(args.file) if sys.stderr.isatty() else None
        model = options.load_model(args, args.n_ctx)
        bad = n = merged = 0
        items = read_json_lines(lines)
        rows = (item if isinstance(item, BadRow) else as_row(*item, columns) for item in items)
        with progress_bar("scoring", total, "row") as bar:
            for outcome in _score_all(model, rows, args.parse_special):
                n += 1
                bar.update(1)
                if not isinstance(outcome, BadRow):
                    merged += _merged(outcome[1])
                    print_json(as_fields(*outcome))
                    continue
                line = printable(f"row {outcome.number}: {outcome.reason}")
                if args.strict:
                    raise MinferError(line)
                bad += 1
                bar.write(f"minfer-jax: {line}", file=sys.stderr)
                print_json(as_fields(outcome))
    warn_of_merged(merged, n)
    if bad:
        raise MinferError(f"{bad} of {n} rows could not be scored")
    return 0


def _merged(result: Result) -> bool:
    """Whether a continuation begins inside a token."""
    scores = result.scores if isinstance(result, MultipleChoice) else [result]
    return any(isinstance(score, Score) and score.merged for score in scores)


def _count(file: str) -> int | None:
    """Number of rows, for a progress bar; None for stdin and pipes."""
    return JsonLinesSource(Path(file)).index(_TOGETHER)[1]["rows"] if Path(file).is_file() else None


def _score_all(
    model: Model, rows: Iterable[Row | BadRow], parse_special: bool
) -> Iterator[tuple[Row, Result] | BadRow]:
    """Every row with its result, or as a bad one, in order."""
    rest = iter(rows)
    while block := list(islice(rest, _TOGETHER)):
        yield from score_rows(model, [encode_row(model, row, parse_special) for row in block])


def _print_result(model: Model, result: Score | TextScore) -> None:
    print_tokens(model, result.tokens, result.token_logprobs)
    flags = result.flags() if isinstance(result, Score) else []
    print_table([("logprob", f"{result.logprob:.4f}"), *([("flags", ", ".join(flags))] if flags else [])])


def print_tokens(model: Model, tokens: Sequence[int], logprobs: Sequence[float | None]) -> None:
    """A table of tokens and their log-probabilities; "-" where a token has none."""
    rows = [
        (token, quoted(model.tokenizer.token_text(token)), value) for token, value in zip(tokens, logprobs, strict=True)
    ]
    if rows:
        print_table(rows, header=("id", "token", "logprob"))
        write("\n")
