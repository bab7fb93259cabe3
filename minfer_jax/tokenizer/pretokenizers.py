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
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼ"
    "ιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻"
    "𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK = "[一-龥ࠀ-一가-퟿]+"

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
        "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)
_bloom = r" ?[^(\s|.,!?…。，、।۔،)]+"
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
        (r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+")
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
