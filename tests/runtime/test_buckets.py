"""Padding: shapes and waste of a long run of scoring, by packing alone."""

import numpy as np
import pytest

from minfer_jax.runtime.buckets import pack_sequences, prompt_columns


@pytest.mark.parametrize("share", [1, 4], ids=["every token scored", "a quarter scored"])
def test_a_thousand_texts_are_few_shapes_and_little_padding(share: int) -> None:
    for seed in range(8):
        lengths = np.random.default_rng(seed).integers(1, 513, 1000)
        texts = [range(n + 1) for n in lengths.tolist()]  # after the token that a text begins with
        n_scored = [max(1, n // share) for n in lengths.tolist()]
        batches = list(pack_sequences(texts, n_scored))
        assert sorted(i for batch in batches for i, _ in batch.results(batch.bucket)) == list(range(1000))
        filled = [batch.fill(batch.bucket) for batch in batches]
        shapes = {(f.tokens.shape, f.targets.shape, f.tail_ids is None) for f in filled}
        slots = sum(f.tokens.size for f in filled)
        assert sum(int((f.positions >= 0).sum()) for f in filled) == lengths.sum()
        assert len(shapes) <= 12 and 1 - lengths.sum() / slots <= 0.15


@pytest.mark.parametrize(
    ("longest", "rows", "backend", "ends"),
    [
        (1, 1, "cpu", [1]),
        (512, 1, "cpu", [512]),
        (513, 8, "cpu", [257, 513]),  # never a column alone
        (2049, 1, "gpu", [1025, 2049]),
        (4097, 1, "gpu", [1025, 2049, 4097]),
        (1000, 16, "cpu", [232, 488, 744, 1000]),
        (40, 1024, "cpu", [8, 24, 40]),
        (5000, 1, "gpu", [904, 2952, 5000]),
        (600, 64, "gpu", [88, 344, 600]),
        (600, 1, "tpu", [88, 600]),
    ],
)
def test_where_chunks_of_prompts_end(longest, rows, backend, ends):
    """At 512 tokens, 2,048 on a GPU, and 4,096 slots of all rows together, 16,384 on a GPU."""
    assert prompt_columns(longest, rows, backend) == ends
