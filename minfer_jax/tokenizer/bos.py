"""The one place that decides about BOS, the token in front of every text that some models need."""

from collections.abc import Sequence

from minfer_jax.errors import ArgumentError, TokenizerError


def with_bos(ids: Sequence[int], *, bos: int | None, file_adds: bool, wanted: bool | None) -> list[int]:
    """Return the ids with BOS in front where it belongs, never a second one.

    bos: the vocabulary's BOS id. file_adds: whether the model asks for it. wanted: the caller's word; None follows the
    file. Ids that already start with BOS stay as they are. Raises ArgumentError when a BOS is wanted and there is none.
    """
    if wanted and bos is None:
        raise ArgumentError("add_bos is True, but the vocabulary has no BOS token; leave add_bos out")
    add = file_adds if wanted is None else wanted
    if add and bos is not None and (not ids or ids[0] != bos):
        return [bos, *ids]
    return list(ids)


def start_id(*, bos: int | None, eos: int | None) -> int:
    """Return the id that stands for "nothing before this": BOS, else EOS. Raises TokenizerError when there is none."""
    start = eos if bos is None else bos
    if start is None:
        raise TokenizerError(
            "there is nothing before the first token, and the vocabulary has neither BOS nor EOS to stand there; put "
            "a context or prompt before it"
        )
    return start
