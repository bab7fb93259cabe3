"""Describe a model file: shape, quantisation, tokenizer.

Reads headers only, so it is quick for any size. Exits with 1 when the file cannot be used, after printing what can be
told about it.
"""

import argparse
import sys
from typing import Any

from minfer_jax import hub
from minfer_jax.cli import options
from minfer_jax.cli.text import print_json, print_table, write
from minfer_jax.display.text import quoted
from minfer_jax.errors import MinferError
from minfer_jax.gguf import GGUFFile, open_gguf
from minfer_jax.models.metadata import read_config
from minfer_jax.tokenizer import Tokenizer

_MOST_SHOWN = 8  # entries of an array in a metadata listing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--sha256", action="store_true", help="hash the file too (reads all of it)")
    parser.add_argument("--metadata", action="store_true", help="list all metadata")
    parser.add_argument("--tensors", action="store_true", help="list all tensors")
    parser.add_argument("--pre", metavar="NAME", help="pre-tokenizer to use instead of the one the file names")
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    file = open_gguf(hub.resolve(args.model))
    facts, problems = describe(file, args.pre)
    if args.sha256:
        facts["sha256"] = file.sha256()
    if args.json:
        facts["problems"] = problems
        if args.metadata:
            facts["metadata"] = {key: _plain(value) for key, value in file.metadata.items()}
        if args.tensors:
            facts["tensors"] = [{"name": name, "type": kind, "shape": shape} for name, kind, shape in _tensors(file)]
        print_json(facts)
    else:
        print_table((key.replace("_", " "), _shown(value)) for key, value in facts.items())
        if args.metadata:
            write("\n")
            print_table((key, _shown(_plain(value))) for key, value in file.metadata.items())
        if args.tensors:
            write("\n")
            rows = ((name, kind, " x ".join(map(str, shape))) for name, kind, shape in _tensors(file))
            print_table(rows, header=("tensor", "type", "shape"))
    for problem in problems:
        print(f"minfer-jax: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def describe(file: GGUFFile, pre: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Facts about a model by name, and what would keep it from being loaded, as far as headers tell."""
    metadata = file.metadata
    facts: dict[str, Any] = {
        "files": [path.name for path in file.paths],
        "bytes": file.size,
        "gguf_version": file.version,
        "name": metadata.get("general.name"),
        "licence": metadata.get("general.license"),
        "architecture": metadata.get("general.architecture"),
        "parameters": file.n_parameters,
        "bits_per_weight": file.bits_per_weight,
        "quantisation": file.type_counts(),
    }
    problems: list[str] = []
    try:
        tokenizer = Tokenizer.from_metadata(metadata, pre=pre)
    except MinferError as error:
        problems.append(str(error))
        words = {"vocabulary": len(metadata.get("tokenizer.ggml.tokens", ()))}
    else:
        words = _describe_tokenizer(tokenizer, metadata.get("tokenizer.ggml.model"))
    try:
        config = read_config(metadata)
    except MinferError as error:
        problems.append(str(error))
    else:
        facts |= {
            "layers": config.n_layers,
            "width": config.d_model,
            "feed_forward": config.d_ff,
            "heads": config.n_heads,
            "kv_heads": config.n_kv_heads,
            "head_size": config.head_dim,
            "context": config.n_ctx_train,
            "sliding_window": max(config.windows) or None,
        }
    return facts | words, problems


def _describe_tokenizer(tokenizer: Tokenizer, model: Any) -> dict[str, Any]:
    def named(token: int | None) -> dict[str, Any] | None:
        return None if token is None else {"id": token, "text": tokenizer.token_text(token)}

    return {
        "vocabulary": tokenizer.vocab_size,
        "tokenizer": model,
        "pre_tokenizer": tokenizer.pre,
        "bos": named(tokenizer.bos_id),
        "bos_is_added": tokenizer.add_bos,
        "eos": named(tokenizer.eos_id),
        "ends_of_generation": [named(token) for token in sorted(tokenizer.eog_ids)],
        "chat_template": tokenizer.chat_template is not None,
    }


def _tensors(file: GGUFFile) -> list[tuple[str, str, list[int]]]:
    return [(tensor.name, tensor.type.name, list(tensor.shape)) for tensor in file.tensors.values()]


def _plain(value: Any) -> Any:
    """A metadata value for JSON; long arrays are cut to a count and their beginning."""
    if not hasattr(value, "__len__") or isinstance(value, str):
        return value
    items = value.tolist() if hasattr(value, "tolist") else value
    return items if len(items) <= _MOST_SHOWN else {"length": len(items), "first": items[:_MOST_SHOWN]}


def _shown(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(str(_shown(item) if isinstance(item, dict) else item) for item in value)
    if isinstance(value, dict) and value.keys() == {"id", "text"}:
        return f"{value['id']} {quoted(value['text'])}"
    if isinstance(value, dict) and value.keys() == {"length", "first"}:
        return f"{value['length']:,} values: {_shown(value['first'])}, ..."
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    return value if len(value) <= 200 else f"{value[:200]}... ({len(value):,} characters)"
