"""Log-probabilities of given text.

Natural logarithms, one value per token.

One request comes from options: --context with one --continuation, or with several as a multiple choice; or --text.

Many come as JSON lines from FILE or stdin ("-"), each an object with context and continuation, context and choices,
or text; other fields are ignored, id is handed through. The results are JSON lines in the same order, in blocks of 512
rows, the last at the end of the input. A bad row becomes {"line", "error"} there and a line on stderr; the rest is
scored and the exit code is 1.

A continuation or choice after a word wants its leading space: " Paris".
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from minfer_jax.cli import options
from minfer_jax.cli.rows import BadRow, Result, Row, count_rows, open_lines, read_rows, score_rows
from minfer_jax.cli.text import print_json, print_table, quoted, write
from minfer_jax.errors import MinferError
from minfer_jax.model import Model
from minfer_jax.progress import progress_bar
from minfer_jax.scoring.results import MultipleChoice, Score, TextScore

_TOGETHER = 512  # rows read and scored at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", help='JSON lines to score; "-" for stdin')
    parser.add_argument("--context", metavar="TEXT", help="what stands before the continuation; may be empty")
    parser.add_argument(
        "--continuation", metavar="TEXT", action="append", help="what is scored; several make a multiple choice"
    )
    parser.add_argument("--text", metavar="TEXT", help="score every token of a text")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad row")
    options.add_parse_special(parser)
    options.add_loading(parser)
    options.add_output(parser, "print one JSON document (rows from FILE are JSON lines always)")


def run(args: argparse.Namespace) -> int:
    if args.file is not None and args.context is args.continuation is args.text is None:
        return _run_rows(args)
    request = _request(args)
    model = options.load_model(args, args.n_ctx)
    (result,) = score_rows(model, [request], args.parse_special)
    if isinstance(result, BadRow):
        raise MinferError(result.reason)
    if args.json:
        print_json(result.to_dict() | {"model": model.provenance})
    elif isinstance(result, MultipleChoice):
        _print_choices(result)
    else:
        _print_result(model, result)
    return 0


def _request(args: argparse.Namespace) -> Row:
    """The one request that options make."""
    context, continuations = args.context, args.continuation
    if args.file is not None or (args.text is not None) + (context is not None or continuations is not None) != 1:
        options.wrong_usage(args, "give one of: FILE, --context with --continuation, --text")
    if args.text is not None:
        return Row(1, "text", args.text)
    if context is None or continuations is None:
        options.wrong_usage(args, "--context and --continuation belong together")
    if len(continuations) == 1:
        return Row(1, "pair", (context, continuations[0]))
    return Row(1, "choices", (context, continuations))


def _run_rows(args: argparse.Namespace) -> int:
    with open_lines(args.file) as lines:
        total = count_rows(args.file) if sys.stderr.isatty() else None
        model = options.load_model(args, args.n_ctx)
        bad = n = 0
        with progress_bar("scoring", total, "row") as bar:
            for row, result in _score_all(model, read_rows(lines), args.parse_special):
                n += 1
                bar.update(1)
                head = {"line": row.line} | ({} if row.id is None else {"id": row.id})
                if not isinstance(result, BadRow):
                    print_json(head | result.to_dict())
                    continue
                if args.strict:
                    raise MinferError(f"line {result.line}: {result.reason}")
                bad += 1
                bar.write(f"minfer-jax: line {result.line}: {result.reason}", file=sys.stderr)
                print_json(head | {"error": result.reason})
    if bad:
        raise MinferError(f"{bad} of {n} rows could not be scored")
    return 0


def _score_all(
    model: Model, rows: Iterable[Row | BadRow], parse_special: bool
) -> Iterator[tuple[Row | BadRow, Result | BadRow]]:
    """Every row with its result, in order."""
    rest = iter(rows)
    while block := list(islice(rest, _TOGETHER)):
        results = score_rows(model, [row for row in block if isinstance(row, Row)], parse_special)
        for row in block:
            yield row, row if isinstance(row, BadRow) else next(results)


def _print_choices(result: MultipleChoice) -> None:
    """A table of choices, with the rules by which each is the best."""
    best = {"sum": result.best_by_sum, "token": result.best_by_token, "byte": result.best_by_byte}
    rows = [
        (
            quoted(choice),
            result.sums[i],
            result.per_token[i],
            result.per_byte[i],
            ", ".join(rule for rule, winner in best.items() if winner == i),
        )
        for i, choice in enumerate(result.choices)
    ]
    print_table(rows, header=("choice", "logprob", "per token", "per byte", "best by"))


def _print_result(model: Model, result: Score | TextScore) -> None:
    print_tokens(model, result.tokens, result.token_logprobs)
    flags = [name for name in ("is_greedy", "truncated", "empty", "merged") if getattr(result, name, False)]
    print_table([("logprob", f"{result.logprob:.4f}"), *([("flags", ", ".join(flags))] if flags else [])])


def print_tokens(model: Model, tokens: Sequence[int], logprobs: Sequence[float | None]) -> None:
    """A table of tokens and their log-probabilities; "-" where a token has none."""
    rows = [
        (token, quoted(model.tokenizer.token_text(token)), value) for token, value in zip(tokens, logprobs, strict=True)
    ]
    if rows:
        print_table(rows, header=("id", "token", "logprob"))
        write("\n")
