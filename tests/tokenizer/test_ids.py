"""T01: ids of awkward strings, and the rules that cut them."""

import json
import logging
import time

import numpy as np
import pytest
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from minfer_jax.errors import ArgumentError, UnsupportedError
from minfer_jax.gguf import open_gguf
from minfer_jax.tokenizer import Tokenizer
from minfer_jax.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.tokenizer.conftest import DATA, GOLDEN, MODELS, small_metadata
from tests.tokenizer.probe import probe_vocabulary
from tests.tokenizer.spm_vocabulary import spm_vocabulary

PRE = json.loads((DATA / "pre_tokenizers.json").read_text())
SPM = json.loads((DATA / "spm_ids.json").read_text())


@pytest.mark.parametrize("model", MODELS)
def test_t01_ids_of_awkward_strings(tokenizers, model):
    tokenizer = tokenizers(model)
    rows = GOLDEN["models"][model]["ids"]
    assert len(rows) >= 39
    for name, ids in rows.items():
        text = GOLDEN["texts"][name]
        assert tokenizer.encode(text, add_bos=False) == ids[0], name
        assert tokenizer.encode(text, add_bos=False, parse_special=True) == ids[-1], name
        assert tokenizer.decode(ids[0]) == text, name


@pytest.mark.parametrize("rule", PRE["rules"], ids=lambda rule: rule["names"][0])
def test_t01_every_splitting_rule_cuts_as_llama_cpp(rule):
    tokens, merges = probe_vocabulary(PRE["texts"])
    types = np.array([1] * (len(tokens) - 1) + [3], np.int32)
    # Where llama.cpp only approximates the model's own expression, the expression is right: letters with case outside
    # ASCII and combining marks (GPT-4o, tekken), and wide characters that DeepSeek's CJK class cuts off once more.
    approximated = {
        "gpt-4o": ("नम", "camelCase", "aB Ab", "x\u0301", "\u0130"),
        "tekken": ("नम", "camelCase", "aB Ab", "x\u0301"),
        "deepseek-llm": ("a\u00a0b\u3000c", "a\u200bb"),
        "deepseek-coder": ("a\u00a0b\u3000c", "a\u200bb"),
    }
    for name in rule["names"]:
        tokenizer = Tokenizer.from_metadata(
            small_metadata(pre=name, tokens=tokens, merges=merges, token_type=types, bos_token_id=None)
        )
        skipped = approximated.get(rule["names"][0], ())
        for text, lengths in zip(PRE["texts"], rule["lengths"], strict=True):
            if not text.startswith(skipped or "no text starts like this"):
                ids = tokenizer.encode(text, add_bos=False)
                assert "".join(str(len(tokenizer.token_bytes(i))) for i in ids) == lengths, (name, text)


def test_t01_every_rule_is_covered():
    assert {name for rule in PRE["rules"] for name in rule["names"]} == PRE_TOKENIZERS.keys()


@pytest.mark.parametrize(
    "name, text, pieces",
    [
        # derived by hand from the expressions in the models' tokenizer.json
        ("tekken", "camelCaseHTTPServer", ["camel", "Case", "HTTPServer"]),
        ("tekken", " éÉtéÀB 123", [" é", "Été", "ÀB", " ", "1", "2", "3"]),
        ("gpt-4o", " éÉté's 1234", [" é", "Été's", " ", "123", "4"]),
        ("gpt-4o", "e\u0301E\u0301", ["e\u0301", "E\u0301"]),
        ("qwen2", "I'LL go 12", ["I", "'LL", " go", " ", "1", "2"]),
        ("llama-bpe", "x=12345", ["x", "=", "123", "45"]),
    ],
)
def test_t01_rules_by_hand(name, text, pieces):
    (pattern,) = PRE_TOKENIZERS[name].patterns
    assert [piece for piece, _ in Split(Regex(pattern), "isolated").pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("row", SPM["rows"], ids=lambda row: ascii(row["text"])[:20])
def test_t01_sentencepiece_as_llama_cpp(row):
    tokens, scores, types = spm_vocabulary()
    tokenizer = Tokenizer.from_metadata(
        small_metadata(
            model="llama",
            pre=None,
            merges=None,
            tokens=tokens,
            token_type=np.array(types, np.int32),
            scores=np.array(scores, np.float32),
            add_space_prefix=row["space_prefix"],
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    ids = row["ids"]
    if ids[:2] == [1, 1]:  # llama.cpp doubles a BOS (and warns); we never do
        ids = ids[1:]
    assert tokenizer.encode(row["text"], parse_special=row["parse_special"]) == ids
    if not row["parse_special"]:
        assert tokenizer.decode(ids) == row["text"].replace("▁", " ")


@pytest.mark.models
def test_t01_gemma_matches_its_user_defined_tokens_in_plain_text(tokenizers):
    assert tokenizers("gemma270").encode("<table><tr>", add_bos=False) == [168, 173]


def test_t01_unknown_rule_is_refused_with_the_known_ones():
    metadata = small_metadata(pre="made-up")
    with pytest.raises(UnsupportedError, match=r"small.gguf.*'made-up'.*pre=.*qwen2.*smollm"):
        Tokenizer.from_metadata(metadata)
    assert Tokenizer.from_metadata(metadata, pre="gpt-2").pre == "gpt-2"


def test_t01_sentencepiece_takes_no_rule():
    tokens, scores, types = spm_vocabulary()
    arrays = {"token_type": np.array(types, np.int32), "scores": np.array(scores, np.float32)}
    metadata = small_metadata(model="llama", pre="whatever", tokens=tokens, bos_token_id=1, eos_token_id=2, **arrays)
    assert Tokenizer.from_metadata(metadata, pre="default").pre == "default"
    with pytest.raises(ArgumentError, match="pre is 'qwen2'.*leave pre out"):
        Tokenizer.from_metadata(metadata, pre="qwen2")


def test_t01_missing_rule_warns(caplog):
    with caplog.at_level(logging.WARNING, "minfer_jax"):
        tokenizer = Tokenizer.from_metadata(small_metadata(pre=None))
    assert tokenizer.pre == "default"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.models
@pytest.mark.parametrize("model", ["qwen05", "gemma270"])
def test_building_takes_less_than_a_second(request, model):
    metadata = open_gguf(request.getfixturevalue(model)).metadata
    seconds = []
    for _ in range(3):
        start = time.process_time()
        Tokenizer.from_metadata(metadata)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1.0
