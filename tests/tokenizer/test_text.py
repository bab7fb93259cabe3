"""T02 (BOS), T03 (special text), T06 (odd strings), T08 (odd ids), E02 (ends), E03 (streams)."""

import pickle

import numpy as np
import pytest

from minfer_jax.errors import ArgumentError, TokenizerError
from minfer_jax.tokenizer import Tokenizer
from tests.tokenizer.conftest import GOLDEN, MODELS, small_metadata


@pytest.mark.parametrize("model", MODELS)
def test_t02_bos_by_the_file(tokenizers, model):
    tokenizer = tokenizers(model)
    prefix = [2] if model == "gemma270" else []
    plain = GOLDEN["models"][model]["ids"]["ascii"][0]
    assert tokenizer.prefix_ids() == prefix
    assert tokenizer.add_bos == bool(prefix)
    assert tokenizer.encode("Hello world") == prefix + plain
    assert tokenizer.encode("Hello world", add_bos=False) == plain
    assert tokenizer.encode("Hello world", add_bos=True) == [tokenizer.bos_id, *plain]
    assert tokenizer.encode("") == prefix


def test_t02_never_twice():
    tokenizer = Tokenizer.from_metadata(small_metadata(add_bos_token=True))
    ids = [257, 256]
    assert tokenizer.encode("ab") == ids
    assert tokenizer.encode("<|bos|>ab", parse_special=True) == ids
    assert tokenizer.encode("<|bos|>ab", parse_special=True, add_bos=True) == ids
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}], template="{{ bos_token }}ab") == ids
    assert tokenizer.encode_chat([{"role": "user", "content": "ab"}], template="{{ messages[0].content }}") == ids


def test_t02_wanted_without_one():
    tokenizer = Tokenizer.from_metadata(small_metadata(bos_token_id=None, add_bos_token=True))
    assert tokenizer.encode("ab") == [256]
    with pytest.raises(ArgumentError, match="add_bos"):
        tokenizer.encode("ab", add_bos=True)


def test_t02_what_stands_before_a_first_token():
    absent = 2**32 - 1  # as files say "none"
    assert Tokenizer.from_metadata(small_metadata()).start_id() == 257
    assert Tokenizer.from_metadata(small_metadata(bos_token_id=absent)).start_id() == 258
    with pytest.raises(TokenizerError, match="neither BOS nor EOS"):
        Tokenizer.from_metadata(small_metadata(bos_token_id=absent, eos_token_id=absent)).start_id()


def test_t02_default_by_the_splitting_rule():
    assert Tokenizer.from_metadata(small_metadata(pre="llama-bpe")).add_bos
    assert not Tokenizer.from_metadata(small_metadata(pre="llama-bpe", add_bos_token=False)).add_bos
    assert not Tokenizer.from_metadata(small_metadata(pre="gpt-2")).add_bos


def test_t03_special_text_is_plain_unless_asked():
    tokenizer = Tokenizer.from_metadata(small_metadata())
    assert 258 not in tokenizer.encode("ab<|im_end|>")
    assert tokenizer.encode("ab<|im_end|>", parse_special=True) == [256, 258]


def test_t03_merges_cannot_reach_a_control_token():
    metadata = small_metadata()
    values = dict(metadata)
    types = np.array([1] * 256 + [3, 3, 3], np.int32)  # "ab" is a control token now, and has a merge
    tokenizer = Tokenizer.from_metadata(values | {"tokenizer.ggml.token_type": types})
    assert tokenizer.encode("ab") == [ord("a"), ord("b")]


def test_t03_an_end_token_of_the_wrong_type_is_still_special():
    types = np.array([1] * 257 + [3, 4], np.int32)
    tokenizer = Tokenizer.from_metadata(small_metadata(token_type=types))
    assert 258 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [258]
    assert tokenizer.decode([256, 258]) == "ab"


@pytest.mark.parametrize("model", MODELS)
def test_t06_nul_and_pairs(tokenizers, model):
    tokenizer = tokenizers(model)
    nul = {"smol135": [81, 190, 82], "qwen05": [64, 188, 65], "gemma270": [236746, 238, 236763]}[model]
    assert tokenizer.encode("a\0b", add_bos=False) == nul
    assert tokenizer.decode(nul) == "a\0b"
    pair = b"\x3d\xd8\x42\xde".decode("utf-16-le")
    assert tokenizer.decode(tokenizer.encode(pair)) == "🙂"
    if model == "qwen05":
        assert tokenizer.encode(pair) == [145080]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("special", [False, True])
def test_t06_lone_surrogate(tokenizers, model, special):
    with pytest.raises(TokenizerError, match=r"U\+D800"):
        tokenizers(model).encode("a\ud800b", parse_special=special)
    with pytest.raises(TokenizerError, match=r"U\+D800"):
        tokenizers(model).encode_chat([{"role": "user", "content": "\ud800"}], template="{{ messages[0].content }}")


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["a"]])
def test_t06_no_string(text):
    with pytest.raises(ArgumentError, match="string"):
        Tokenizer.from_metadata(small_metadata()).encode(text)


def test_t06_byte_without_a_token_is_dropped_with_a_warning(tokenizers, caplog):
    # SmolLM2's vocabulary has no token for the byte 0x04; llama.cpp and Hugging Face drop it without a word.
    assert tokenizers("smol135").encode("a\x04a") == [81, 81]
    assert "no token for some bytes" in caplog.text


@pytest.mark.models
def test_t08_unused_ids_are_empty(tokenizers):
    tokenizer = tokenizers("qwen05")
    for i in (151665, 151935):
        assert tokenizer.decode([i]) == ""
        assert tokenizer.decode([64, i, 65], skip_special=False) == "ab"
        assert tokenizer.token_bytes(i) == b""
        assert tokenizer.token_text(i) == f"[PAD{i}]"
    stream = tokenizer.stream_decoder()
    assert [stream.push(i) for i in (64, 151900, 65)] == ["a", "", "b"]


@pytest.mark.parametrize("ids", [[-1], [259], [2**31], [2**70], [0.5], [True], ["a"], [[1]], "ab", None])
def test_t08_ids_out_of_range(ids):
    tokenizer = Tokenizer.from_metadata(small_metadata())
    for call in (tokenizer.decode, tokenizer.check_ids):
        with pytest.raises(ArgumentError, match=r"\bids?\b"):
            call(ids)


def test_t08_single_ids_out_of_range():
    tokenizer = Tokenizer.from_metadata(small_metadata())
    for call in (tokenizer.token_bytes, tokenizer.token_text, tokenizer.stream_decoder().push):
        with pytest.raises(ArgumentError, match="id -1 is outside the vocabulary"):
            call(-1)
        call(np.int32(5))
    for ids in (np.array([0, 258], np.uint16), (0, np.int64(258)), iter([0, 258]), {0: "a", 258: "b"}):
        checked = tokenizer.check_ids(ids)
        assert checked == [0, 258] and {type(i) for i in checked} == {int}
    assert tokenizer.check_ids([]) == []


def test_e02_ends(tokenizers):
    tokenizer = tokenizers("smol135")
    assert tokenizer.eog_ids == {0, 2}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id) == (1, 2, 2)
    changed = tokenizer.with_eog_ids([5])
    assert (changed.eog_ids, tokenizer.eog_ids) == ({5}, {0, 2})
    with pytest.raises(ArgumentError, match="49152"):
        tokenizer.with_eog_ids([49152])


@pytest.mark.models
def test_e02_ends_are_control_tokens_only(tokenizers):
    assert tokenizers("qwen05").eog_ids == {151643, 151645}
    assert tokenizers("gemma270").eog_ids == {1, 106}  # not 212, the HTML tag </s>


@pytest.mark.parametrize("model", MODELS)
def test_e03_stream_of_emoji(tokenizers, model):
    tokenizer = tokenizers(model)
    golden = GOLDEN["models"][model]["stream_emoji"]
    stream = tokenizer.stream_decoder()
    assert [stream.push(i) for i in golden["ids"]] == golden["chunks"]
    assert stream.finish() == ""
    assert [tokenizer.token_bytes(i).hex() for i in golden["ids"]] == golden["piece_hex"]


@pytest.mark.parametrize("n_ids, text", [(1, "\ufffd"), (2, "🙂"), (3, "🙂a"), (4, "🙂a\ufffd"), (5, "🙂a\ufffd")])
def test_e03_stream_cut_inside_a_character(tokenizers, n_ids, text):
    tokenizer = tokenizers("smol135")
    ids = GOLDEN["models"]["smol135"]["stream_emoji"]["ids"][:n_ids]
    stream = tokenizer.stream_decoder()
    assert "".join(map(stream.push, ids)) + stream.finish() == text == tokenizer.decode(ids)


def test_special_ids_are_left_out(tokenizers):
    tokenizer = tokenizers("smol135")
    ids = [1, 19556, 2]
    assert tokenizer.decode(ids) == "Hello"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>Hello<|im_end|>"
    assert {0, 1, 2} <= tokenizer.special_ids
    assert (tokenizer.token_bytes(2), tokenizer.token_text(2)) == (b"<|im_end|>", "<|im_end|>")
    assert (tokenizer.token_bytes(10813), tokenizer.token_text(10813)) == (b"\xf0\x9f", "\\xf0\\x9f")
    assert "".join(map(tokenizer.stream_decoder(skip_special=False).push, ids)) == "<|im_start|>Hello<|im_end|>"


def test_pickle(tokenizers):
    tokenizer = tokenizers("smol135").with_eog_ids([2])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("Hello world") == [19556, 905]
    assert again.eog_ids == {2}
