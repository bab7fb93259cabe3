"""The reference that llama.cpp's own tool leaves: ``llama-perplexity --kl-divergence-base FILE`` (tools/perplexity/
perplexity.cpp).

Layout, little-endian: ``_logits_``; n_ctx (uint32), n_vocab, n_chunk (int32); the ids of all chunks (int32), without
the BOS that the tool puts over the first of each; then for each scored token a row of scale and smallest
log-probability (float32) and a code (uint16) per token, padded to an even number of them. Log-probabilities end 16
nats below the likeliest, and what is below e^-16 does not count. The file names neither model nor vocabulary.
"""

import os
from typing import BinaryIO

import numpy as np

from minfer_jax.errors import ArgumentError, MinferError
from minfer_jax.scoring.chunks import Chunks, scored_of
from minfer_jax.scoring.divergence import ReferenceRows

KLD_MAGIC = b"_logits_"


class KLDFile:
    """Open for reading, as ``ReferenceFile`` is."""

    is_cut = True

    def __init__(self, file: BinaryIO, name: str, vocab_size: int, chunks: Chunks) -> None:
        self.name, self.chunks, self.vocab_size = name, chunks, vocab_size
        self.about = {"file": [os.path.basename(name)], "written_by": "llama.cpp"}
        self._file, self._row = file, _row_type(vocab_size)

    def ids_after(self, prefix: list[int]) -> np.ndarray:
        """The ids as a model is fed them: prefix, BOS or nothing, goes over the first of each chunk."""
        ids = self.chunks.ids.copy()
        ids[:, : len(prefix)] = prefix
        return ids

    def read(self, targets: np.ndarray) -> ReferenceRows:
        """The next rows of a chunk, on the host, for as many ids that they are to predict."""
        records = np.frombuffer(read_exactly(self._file, len(targets) * self._row.itemsize, self.name), self._row)
        codes = np.ascontiguousarray(records["values"][:, : self.vocab_size])
        step, floor = (np.ascontiguousarray(records[name]) for name in ("step", "floor"))
        logprob = step * codes[np.arange(len(targets)), targets] + floor
        return ReferenceRows(codes, step, floor, logprob, codes.argmax(-1).astype(np.int32))

    def end_chunk(self) -> None:
        """Nothing here tells whether the rows are what was written."""

    def check_vocabulary(self, tokens: list[str], model: str) -> None:
        """Raise ArgumentError unless there are as many tokens as in the reference. model: name of theirs."""
        if len(tokens) != self.vocab_size:
            raise ArgumentError(
                f"{model} has {len(tokens)} tokens and the reference in {self.name} {self.vocab_size}; KL divergence "
                "needs the same vocabulary"
            )


def open_kld(file: BinaryIO, name: str) -> KLDFile:
    """The file, read up to its magic. Raises MinferError (cut off, damaged) naming it."""
    n_ctx, vocab_size, n_chunks = np.frombuffer(read_exactly(file, 12, name), "<i4").tolist()
    if n_ctx < 4 or vocab_size < 1 or n_chunks < 1:
        raise MinferError(f"{name}: the header is damaged; write the file again")
    n_ids = n_chunks * n_ctx
    check_size(file, 4 * n_ids + n_chunks * scored_of(n_ctx) * (8 + 2 * (vocab_size + vocab_size % 2)), name)
    ids = np.frombuffer(read_exactly(file, 4 * n_ids, name), "<i4").reshape(n_chunks, n_ctx)
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise MinferError(f"{name}: the stored ids are damaged; write the file again")
    return KLDFile(file, name, vocab_size, Chunks(ids, n_ids))


def check_size(file: BinaryIO, rest: int, name: str) -> None:
    """Raise MinferError unless so many bytes follow."""
    size, whole = os.fstat(file.fileno()).st_size, file.tell() + rest
    if size != whole:
        what = "cut off" if size < whole else "too long"
        raise MinferError(f"{name}: {what}: {size} bytes where its header announces {whole}; write the file again")


def read_exactly(file: BinaryIO, n: int, name: str) -> bytes:
    """The next n bytes. Raises MinferError where there are fewer."""
    data = file.read(n)
    if len(data) < n:
        raise MinferError(f"{name}: cut off; write the file again")
    return data


def _row_type(vocab_size: int) -> np.dtype:
    return np.dtype([("step", "<f4"), ("floor", "<f4"), ("values", "<u2", (vocab_size + vocab_size % 2,))])
