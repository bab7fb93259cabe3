"""Padding: shapes and waste of a long run of scoring, by packing alone."""

import numpy as np
import pytest

from minfer_jax.runtime.buckets import pack_sequences


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
