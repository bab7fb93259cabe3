"""The one check of integers, alone and through the arguments that use it."""

import numpy as np
import pytest

import minfer_jax as mj
from minfer_jax.arguments import check_integer


@pytest.mark.parametrize("value", [3, np.int8(3), np.int64(3), np.uint32(3), np.array(3)])
def test_integers_of_python_and_numpy(value: object) -> None:
    number = check_integer("n", value, 3)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize(
    "value", [2, np.int64(2), True, np.True_, 3.0, np.float32(3), "3", None, [3], np.array([3, 4])]
)
def test_all_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(mj.ArgumentError, match="^n is .*; give an integer of at least 3$"):
        check_integer("n", value, 3)


def test_numpy_integers_as_arguments(tiny_gguf) -> None:
    n = np.int64(64)
    model = mj.load(tiny_gguf("llama"), n_ctx=n)
    assert model.config.n_ctx == 64 and type(model.config.n_ctx) is int
    assert mj.score(model, [("in the", " end")], batch_tokens=n) == mj.score(
        model, [("in the", " end")], batch_tokens=64
    )
    text = "the inner end " * 20
    assert mj.perplexity(model, text, n_ctx=np.int32(16), max_chunks=np.int32(2)) == mj.perplexity(
        model, text, n_ctx=16, max_chunks=2
    )
    sampler = mj.Sampler(top_k=np.int32(4), seed=np.uint32(7), logit_bias={np.int64(5): 1.0})
    out = mj.generate(model, "the", max_tokens=np.int64(3), sampler=sampler, stop_ids=[])
    assert len(out.tokens) == 3 and out.seed == 7
