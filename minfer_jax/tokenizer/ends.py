"""Which tokens end a turn, and so a generation; and which others are kept out of plain text like control tokens."""

from gguf.constants import TokenType

from minfer_jax.tokenizer.vocabulary import Vocabulary

# In order of preference: a vocabulary with several uses the first for turns.
_END_OF_TURN = (
    "<|eot_id|>",
    "<|eot|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "<|endoftext|>",
)
_END_OF_MESSAGE = ("<|eom_id|>", "<|eom|>")
_END_TEXTS = frozenset((*_END_OF_TURN, *_END_OF_MESSAGE, "</s>"))


def _control_tokens(vocabulary: Vocabulary, names: tuple[str, ...]) -> list[int]:
    # Only control tokens: in some vocabularies an ordinary token or an HTML tag reads like an end token.
    ids = {vocabulary.tokens[i]: i for i in vocabulary.control_ids()}
    return [ids[name] for name in names if name in ids]


def find_end_of_turn(vocabulary: Vocabulary) -> int | None:
    """Return the file's end-of-turn id, else the first control token with a well-known name, else None."""
    if vocabulary.eot is not None:
        return vocabulary.eot
    return next(iter(_control_tokens(vocabulary, _END_OF_TURN)), None)


def find_ends_of_generation(vocabulary: Vocabulary) -> frozenset[int]:
    """Return every id that ends a generation: named by the file, or a control token with a well-known name."""
    named = (vocabulary.eos, vocabulary.eot, vocabulary.eom)
    return frozenset(i for i in named if i is not None) | frozenset(
        _control_tokens(vocabulary, _END_OF_TURN + _END_OF_MESSAGE)
    )


def named_specials(vocabulary: Vocabulary) -> list[int]:
    """Return the ids that the file names as BOS or an end without giving them the control type, as it should.

    An ordinary token counts only when it also reads like an end token: some files name a comma as their BOS."""
    named = {i for i in (vocabulary.bos, vocabulary.eos, vocabulary.eot, vocabulary.eom) if i is not None}
    user_defined = set(vocabulary.ids_of(TokenType.USER_DEFINED))
    ordinary = {i for i in named if vocabulary.types[i] == TokenType.NORMAL}
    return sorted(named & user_defined | {i for i in ordinary if vocabulary.tokens[i] in _END_TEXTS})


def guarded_user_defined(vocabulary: Vocabulary) -> list[int]:
    """Return the user-defined ids that read like an end token. Like control tokens, and as in llama.cpp, they are
    matched on request only, so that no message can end its own turn; unlike them, they are text (Gemma's HTML tag
    ``</s>`` is one)."""
    return [i for i in vocabulary.ids_of(TokenType.USER_DEFINED) if vocabulary.tokens[i] in _END_TEXTS]
