"""The one value that scoring and generation take."""

from dataclasses import dataclass
from typing import Any

from minfer_jax.display import html
from minfer_jax.gguf import GGUFFile
from minfer_jax.models.config import Config
from minfer_jax.models.params import Params
from minfer_jax.tokenizer import Tokenizer


@dataclass(frozen=True, repr=False, eq=False)
class Model:
    """A loaded model. config: static description; params: weights, a pytree; tokenizer: text <-> ids.

    provenance: what a result made with this model should carry (file names, size, quantisation mix, implementation,
    dtype, precision, context window, instruction set, versions); with the file's sha256, which is computed when first
    asked for, it is ``identity()``.
    """

    config: Config
    params: Params
    tokenizer: Tokenizer
    provenance: dict[str, Any]
    file: GGUFFile

    def __repr__(self) -> str:
        config, about = self.config, self.provenance
        mix = " ".join(f"{name}x{n}" for name, n in about["quantisation"].items())
        return (
            f"{type(self).__name__}({self.file.name}, {config.arch}, {config.n_layers} layers of {config.d_model}, "
            f"{mix}, {about['implementation']} {about['dtype']}, n_ctx {config.n_ctx})"
        )

    def facts(self) -> dict[str, str]:
        """What it is, for a reader: by name, sizes with their units."""
        file, config, about = self.file, self.config, self.provenance
        how = (about[key] for key in ("implementation", "dtype", "precision", "instruction_set") if key in about)
        return {
            "file": f"{', '.join(about['file'])} ({file.size / 1e6:,.0f} MB)",
            "architecture": f"{config.arch}, {config.n_layers} layers of width {config.d_model:,}, "
            f"{config.n_heads} heads ({config.n_kv_heads} of keys and values)",
            "weights": f"{file.n_parameters / 1e6:,.1f} million, {file.bits_per_weight:.2f} bits each",
            "tensors": ", ".join(f"{n} {name}" for name, n in about["quantisation"].items()),
            "vocabulary": f"{config.vocab_size:,} tokens",
            "context": f"{config.n_ctx:,} tokens",
            "runs as": f"{' '.join(how)} on {about['backend']}",
        }

    def _repr_html_(self) -> str:
        return html.block(type(self).__name__, html.facts(self.facts()))

    def sha256(self) -> str:
        """Hash of the model file, of all parts in order."""
        return self.file.sha256()

    def identity(self) -> dict[str, Any]:
        """The provenance with the file's sha256: which file gave a number, and by what."""
        return self.provenance | {"sha256": self.sha256()}
