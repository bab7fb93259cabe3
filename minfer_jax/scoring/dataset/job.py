"""What is to be done with a dataset, before any model is loaded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.files import check_target
from minfer_jax.scoring.dataset.block import Block
from minfer_jax.scoring.dataset.formats import Output, open_source, output_for
from minfer_jax.scoring.dataset.manifest import errors_of, folder_of, manifest_of
from minfer_jax.scoring.rows import Columns, Form

SHARD_ROWS = 1024
"""Rows of a shard: what a kill costs at most, and what is sorted by length together."""

_PROTOCOLS = {
    "pair": "lm-evaluation-harness loglikelihood",
    "choices": "lm-evaluation-harness loglikelihood",
    "text": "every token, in windows of n_ctx",
}


@dataclass(frozen=True)
class Job:
    """What is to be done, by whatever engine. blocks: of the source. about: what identifies the job, but the model."""

    source: Path
    columns: Columns
    form: Form
    parse_special: bool
    output: Output
    target: Path
    blocks: Sequence[Block]
    about: dict[str, Any]


def plan(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    columns: Columns | None = None,
    shard_rows: int = SHARD_ROWS,
    parse_special: bool = False,
) -> Job:
    """The job, with arguments as of :func:`score_dataset`. Raises ArgumentError."""
    shard_rows = check_integer("shard_rows", shard_rows, 1)
    columns = Columns() if columns is None else columns
    if not isinstance(columns, Columns):
        raise ArgumentError(f"columns is {columns!r:.80}; give Columns(...)")
    if not isinstance(source, str | os.PathLike):
        raise ArgumentError(f"source is {source!r:.80}; give the path of a file")
    given = Path(source)
    wanted = check_target(target)
    for file in (wanted, errors_of(wanted), manifest_of(wanted)):
        check_target(file, given)
    if folder_of(wanted).resolve() in given.resolve().parents:
        raise ArgumentError(f"{given}: lies in {folder_of(wanted)}, which is removed in the end; move it")
    rows = open_source(given, columns)
    blocks, about_source = rows.index(shard_rows)
    if not blocks:
        raise ArgumentError(f"{given}: holds no rows")
    form = rows.form(columns)
    output = output_for(wanted, form.kind, rows.id_type)
    about = {
        "source": about_source,
        "form": {"kind": form.kind, "fields": dict(form.fields), "id": columns.id_name, "parse_special": parse_special},
        "protocol": _PROTOCOLS[form.kind],
        "shard_rows": shard_rows,
        "format": output.suffix,
    }
    return Job(given, columns, form, parse_special, output, wanted, blocks, about)
