"""How a byte-level BPE vocabulary cuts text before merging: one rule for each ``tokenizer.ggml.pre``.

A rule is a list of regular expressions. Each one in turn cuts the pieces that the ones before it left; a match is a
piece, and so is what lies between matches. The expressions are those of the models' own ``tokenizer.json`` files (or
equal to them); the names are those that llama.cpp's converter writes into GGUF files.
"""

from dataclasses import dataclass

from minfer_jax.errors import UnsupportedError


@dataclass(frozen=True)
class PreTokenizer:
    """patterns: see above. whole_words: a piece that is a token becomes that token, whatever the merges say.
    adds_bos: a BOS goes in front where the file does not say (``tokenizer.ggml.add_bos_token``)."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FALCON_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"


def _words(digits: str, contractions: str = _CONTRACTIONS + "|", letters: str = r"\p{L}", outside: str = "") -> str:
    """Letter runs with one leading mark, numbers, punctuation with its line ends: Llama 3, Qwen and relatives."""
    return (
        rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{outside}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased_words(digits: str, contractions: str = "") -> str:
    """The same with a cut before a capital that follows small letters: GPT-4o and Mistral's tekken."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{contractions}|{lead}{upper}+{lower}*{contractions}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


# Letters that have case (and a few that had when the expression was written), as DeepSeek's files list them.
_DEEPSEEK_LETTERS = (
    "A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_PUNCTUATION = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_gpt2 = PreTokenizer((_GPT2,))
_digits_gpt2 = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_words(r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_dbrx = PreTokenizer(_llama3.patterns)
_glm4 = PreTokenizer(_llama3.patterns, whole_words=True)
_qwen2 = PreTokenizer((_words(r"\p{N}"),))
_gpt4o = PreTokenizer((_cased_words(r"\p{N}{1,3}", _CONTRACTIONS + "?"),))
_deepseek3 = PreTokenizer(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_bloom = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_bailing = PreTokenizer(
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # llama.cpp's rule for files from before the key existed
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling"), _gpt2),
    **dict.fromkeys(("mellum", "gigachat", "a.x-4.0", "modern-bert"), _gpt2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _digits_gpt2),
    **dict.fromkeys(("minerva-7b", "mellum2"), _digits_gpt2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _llama3),
    "midm-2.0": _llama3,
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _dbrx),
    **dict.fromkeys(("glm4", "glm5"), _glm4),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"), _qwen2),
    **dict.fromkeys(("grok-2", "kormo"), _qwen2),
    "qwen35": PreTokenizer((_words(r"\p{N}", letters=r"[\p{L}\p{M}]", outside=r"\p{M}"),)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _gpt4o),
    "tekken": PreTokenizer((_cased_words(r"\p{N}"),), whole_words=True, adds_bos=True),
    "deepseek-llm": PreTokenizer(
        (r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", _DEEPSEEK_PUNCTUATION, r"\s+$", _CJK, r"\p{N}+")
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _deepseek3),
    "falcon": PreTokenizer((_FALCON_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_bloom,))),
    "viking": PreTokenizer((_bloom, r"\p{N}")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _bailing),
    "seed-coder": PreTokenizer(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)
    ),
}
"""Every known name. Names that share an object share a rule."""


def find_pre_tokenizer(name: str, source: str) -> PreTokenizer:
    """Return the rule of this name. Raises UnsupportedError listing the known ones."""
    if name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"{source}: tokenizer.ggml.pre is {name!r}, a splitting rule we do not know; if it equals a known one, "
            f"name that with pre=... (known: {', '.join(sorted(PRE_TOKENIZERS))})"
        )
    return PRE_TOKENIZERS[name]
