"""load(): from a name or path to a Model."""

import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from minfer_jax import hub
from minfer_jax.arguments import check_integer
from minfer_jax.errors import ArgumentError
from minfer_jax.gguf import GGUFFile, open_gguf
from minfer_jax.implementations import check_room, choose, device_limit
from minfer_jax.model import Model
from minfer_jax.models.config import Config
from minfer_jax.models.metadata import read_config
from minfer_jax.models.weights import load_params
from minfer_jax.native import instruction_set
from minfer_jax.runtime.persistent_cache import enable_persistent_cache
from minfer_jax.tokenizer import Tokenizer

log = logging.getLogger("minfer_jax")


def load(
    name: str | Path,
    *,
    implementation: str | None = None,
    dtype: str | None = None,
    precision: str | None = None,
    n_ctx: int | None = None,
    pre: str | None = None,
) -> Model:
    """Load a GGUF model.

    name: a path (a file, any part of a split model, or its folder), a known name such as "smollm2-135m", or
        "hf:org/repo:file.gguf".
    implementation: "ffi" keeps the weights packed, for native kernels on the CPU; "pallas" keeps them packed, for
        kernels on a GPU of the Hopper generation that serve up to 16 tokens at a time, and expanded to float16, for
        more; "dense" expands them once at load; "xla" keeps them packed and expands them inside every program. None:
        without a dtype "ffi" or "pallas" where they run, else "dense".
    precision: "default" (None) rounds the inputs of products with packed weights to 16-bit integers, with a scale for
        every 32 ("ffi", and decode steps of "pallas"), which moves a log-probability by less than 0.001 nats on
        average. "exact" keeps them in float32: at half the speed with "ffi", by "dense" on a GPU.
    dtype: of expanded weights, "float32", "float16" or "bfloat16"; None: float32, but where implementation is None too
        float16 on a GPU. "ffi", "pallas" and "xla" have no use for it. The two short ones are for GPUs: weights, inputs
        of products and of attention are rounded to 11 or 8 bits of mantissa, which moves a log-probability by 0.002 or
        0.01 nats on average; the residual stream and all accumulation are float32 always. In float16 an input above 4
        million gives a NumericsError.
    n_ctx: context window; None takes the model's training context.
    pre: pre-tokenizer to use instead of the file's ``tokenizer.ggml.pre``.

    Compiled programs are kept on disk from the first load on, see ``runtime.persistent_cache``.

    Raises GGUFError, UnsupportedError, TokenizerError or ArgumentError, each with one line that says what to do.
    """
    if n_ctx is not None:
        n_ctx = check_integer("n_ctx", n_ctx, 1)
        if n_ctx >= 2**31:
            raise ArgumentError(f"n_ctx is {n_ctx}; positions are 32-bit numbers")

    numerics = choose(implementation, dtype, precision)
    enable_persistent_cache()
    file = open_gguf(hub.resolve(name))
    check_room(file, numerics, device_limit())
    config = read_config(file.metadata, n_ctx)
    if config.n_ctx > config.n_ctx_train:
        log.warning("%s: n_ctx %d exceeds the training context %d", file.name, config.n_ctx, config.n_ctx_train)
    tokenizer = Tokenizer.from_metadata(file.metadata, pre=pre)
    params = load_params(file.tensors, config, file.name, numerics.implementation, numerics.dtype)
    dtypes = {"dense": numerics.dtype, "pallas": "packed+float16"}
    about = {
        "pre": tokenizer.pre,
        "implementation": numerics.implementation,
        "dtype": dtypes.get(numerics.implementation, "packed"),
    }
    if numerics.implementation == "ffi":
        about |= {"precision": "exact" if numerics.exact else "default", "instruction_set": instruction_set()}
        params = params.with_exact_products(numerics.exact)
    return Model(config, params, tokenizer, _provenance(file, config) | about, file)


def _provenance(file: GGUFFile, config: Config) -> dict[str, Any]:
    return {
        "file": [p.name for p in file.paths],
        "bytes": file.size,
        "architecture": config.arch,
        "quantisation": file.type_counts(),
        "n_ctx": config.n_ctx,
        "backend": jax.default_backend(),
        "versions": {package: _version(package) for package in ("minfer-jax", "jax", "gguf", "numpy")},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a checkout on the path, never installed
        return "unknown"
