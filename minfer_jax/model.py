"""The one value that scoring and generation take."""

from dataclasses import dataclass
from typing import Any

from minfer_jax.gguf import GGUFFile
from minfer_jax.models.config import Config
from minfer_jax.models.params import Params
from minfer_jax.tokenizer import Tokenizer


@dataclass(frozen=True, repr=False, eq=False)
class Model:
    """A loaded model. config: static description; params: weights, a pytree; tokenizer: text <-> ids.

    provenance: what a result made with this model should carry (file names, size, quantisation mix, implementation,
    dtype, precision, instruction set, versions); the file's sha256 is computed by ``sha256()`` when first asked for.
    """

    config: Config
    params: Params
    tokenizer: Tokenizer
    provenance: dict[str, Any]
    file: GGUFFile

    def __repr__(self) -> str:
        mix = " ".join(f"{name}x{n}" for name, n in self.provenance["quantisation"].items())
        return (
            f"Model({self.file.name}, {self.config.arch}, {self.config.n_layers} layers of {self.config.d_model}, "
            f"{mix}, {self.provenance['implementation']} {self.provenance['dtype']}, n_ctx {self.config.n_ctx})"
        )

    def sha256(self) -> str:
        """Hash of the model file, of all parts in order."""
        return self.file.sha256()
