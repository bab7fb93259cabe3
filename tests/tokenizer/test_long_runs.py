"""T07: very long runs without a break: fast, in nearly linear time, with the ids of Hugging Face tokenizers."""

import json
import random
import time

import pytest
from gguf.constants import TokenType
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from minfer_jax.gguf import open_gguf
from tests.tokenizer.conftest import GOLDEN, MODELS

LENGTH = 100_000


def _json_line() -> str:
    entry = random.Random(1)
    rows = [{"id": i, "v": [entry.randint(0, 9999) for _ in range(8)], "k": f"n{i}"} for i in range(LENGTH // 50)]
    return json.dumps(rows, separators=(",", ":"))


TEXTS = {
    "letter": "a" * LENGTH,
    "spaces": " " * LENGTH,
    "spaces_word": " " * (LENGTH - 1) + "x",
    "equals": "=" * LENGTH,
    "newlines": "\n" * LENGTH,
    "han": "你" * (LENGTH // 2),
    "angles": "<" * LENGTH,
    "random": "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=LENGTH)),
    "json": _json_line()[:LENGTH],
}


def _seconds(tokenizer, text: str) -> float:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        tokenizer.encode(text)
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_t07_time(tokenizers, model, kind):
    tokenizer, text = tokenizers(model), TEXTS[kind]
    half, whole = _seconds(tokenizer, text[: len(text) // 2]), _seconds(tokenizer, text)
    assert whole < 5
    assert whole <= 3 * half + 0.005, f"{half:.3f} s for half of it, {whole:.3f} s for the whole"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture(scope="module")
def hugging_face(request):
    """Tokenizers built here from the file's lists alone, by the models' own tokenizer.json settings."""
    built = {}

    def get(name: str) -> Tokenizer:
        if name not in built:
            metadata = open_gguf(request.getfixturevalue(name)).metadata
            built[name] = _from_scores(metadata) if name == "gemma270" else _from_merges(metadata, name)
        return built[name]

    return get


def _from_merges(metadata, name: str) -> Tokenizer:
    tokens = metadata.strings("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in metadata.strings("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    if name == "smol135":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=True)]
    else:
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+"
        )
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        steps = [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer


def _from_scores(metadata) -> Tokenizer:
    """Every way to join two tokens to a third is a merge; the joined token's score is its rank."""
    tokens = metadata.strings("tokenizer.ggml.tokens")
    ids = {token: i for i, token in enumerate(tokens)}
    scores = metadata.numbers("tokenizer.ggml.scores").tolist()
    merges = []
    for i, token in enumerate(tokens):
        cuts = [(token[:c], token[c:]) for c in range(1, len(token)) if token[:c] in ids and token[c:] in ids]
        merges += [(-scores[i], ids[left], ids[right], left, right) for left, right in cuts]
    merges.sort()
    model = models.BPE(ids, [row[3:] for row in merges], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.ByteFallback()
    types = metadata.numbers("tokenizer.ggml.token_type")
    tokenizer.add_tokens([tokens[i] for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED])
    return tokenizer


@pytest.mark.parametrize("model", MODELS)
def test_t07_ids_of_the_first_characters(tokenizers, hugging_face, model):
    tokenizer, other = tokenizers(model), hugging_face(model)
    for kind, text in TEXTS.items():
        ids = tokenizer.encode(text[:5000], add_bos=False)
        assert ids == other.encode(text[:5000], add_special_tokens=False).ids, kind


@pytest.mark.parametrize("model", MODELS)
def test_t07_seventy_letters(tokenizers, model):
    assert tokenizers(model).encode("a" * 70, add_bos=False) == GOLDEN["models"][model]["ids"]["long_a"][0]
