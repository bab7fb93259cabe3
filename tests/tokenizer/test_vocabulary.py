"""Vocabularies that we lack or that are damaged end in one clear line."""

import numpy as np
import pytest

from minfer_jax.errors import GGUFError, TokenizerError, UnsupportedError
from minfer_jax.tokenizer import Tokenizer
from tests.tokenizer.conftest import small_metadata


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", "none", "new-kind"])
def test_other_kinds_of_vocabulary(model):
    with pytest.raises(UnsupportedError, match=rf"small.gguf: tokenizer.ggml.model is '{model}'.*gpt2.*llama"):
        Tokenizer.from_metadata(small_metadata(model=model))


def test_no_vocabulary_at_all():
    with pytest.raises(UnsupportedError, match="'none'"):
        Tokenizer.from_metadata({})


@pytest.mark.parametrize(
    "changes, error, words",
    [
        ({"tokens": None}, GGUFError, "tokenizer.ggml.tokens"),
        ({"tokens": np.arange(3)}, GGUFError, "tokenizer.ggml.tokens"),
        ({"tokens": []}, TokenizerError, "tokenizer.ggml.tokens is empty"),
        ({"merges": None}, TokenizerError, "tokenizer.ggml.merges is missing"),
        ({"merges": ["a b", "abc"]}, TokenizerError, r"merges\[1\] is 'abc'"),
        ({"merges": ["a b c"]}, TokenizerError, r"merges\[0\] is 'a b c'"),
        ({"token_type": np.ones(3, np.int32)}, TokenizerError, "token_type has 3 entries for 259 tokens"),
        ({"bos_token_id": "x"}, GGUFError, "bos_token_id"),
        ({"model": "llama"}, TokenizerError, "tokenizer.ggml.scores is missing"),
        ({"model": "llama", "scores": np.zeros(9, np.float32)}, TokenizerError, "scores has 9 entries"),
        ({"model": "llama", "scores": np.full(259, np.nan, np.float32)}, TokenizerError, "scores holds NaN"),
    ],
)
def test_damaged(changes, error, words):
    with pytest.raises(error, match=rf"small.gguf: .*{words}"):
        Tokenizer.from_metadata(small_metadata(**changes))


def test_special_id_out_of_range_is_ignored_with_a_warning(caplog):
    tokenizer = Tokenizer.from_metadata(small_metadata(bos_token_id=2**32 - 1))
    assert tokenizer.bos_id is None
    assert "tokenizer.ggml.bos_token_id is 4294967295" in caplog.text


def test_merges_of_missing_tokens_are_ignored_with_a_warning(caplog):
    tokenizer = Tokenizer.from_metadata(small_metadata(merges=["a b", "c d", "x yz"]))
    assert tokenizer.encode("abcd") == [256, ord("c"), ord("d")]
    assert "2 of 3 merges" in caplog.text


def test_same_text_twice_keeps_the_first_id():
    metadata = small_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"]]
    tokens[0] = "a"
    assert Tokenizer.from_metadata({**metadata, "tokenizer.ggml.tokens": tokens}).encode("ba") == [ord("b"), 0]


def test_sentencepiece_with_empty_and_repeated_texts():
    tokens = ["<unk>", "<s>", "</s>", "", "a", "a", "b", "ab", "\0"]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, 1, 1, 1, 1, 1, 1], np.int32),
        "tokenizer.ggml.add_space_prefix": False,
    }
    tokenizer = Tokenizer.from_metadata(values)
    assert tokenizer.encode("ab\0a") == [1, 7, 0, 4]
    assert tokenizer.encode("é", add_bos=False) == [0]  # no byte tokens: the unknown token; so for the NUL above


def test_phi3_special_tokens_swallow_white_space():
    metadata = small_metadata()
    values = {**metadata, "general.name": "Phi-3-mini"}
    assert Tokenizer.from_metadata(values).encode("<|im_end|> \n ab", parse_special=True) == [258, 256]
    assert Tokenizer.from_metadata(metadata).encode("<|im_end|> ab", parse_special=True) == [258, ord(" "), 256]
