"""What ``benchmarks.scoring`` scores: questions of four choices behind one few-shot header, and texts; the same at
every call.

As texts they are walks over a text of ordinary English, in which every word follows one that it follows there. As token
ids, for models whose words mean nothing, they have the same lengths.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

Questions = list[tuple[str, list[str]]]
"""(context, choices)"""
IdPairs = list[tuple[list[int], list[int]]]
"""(ids of the context, ids of the continuation)"""

TEXT = Path(__file__).parent.parent / "tests" / "data" / "perplexity_text.txt"
SHOTS, CHOICES = 5, 4
SHOT, QUESTION, CHOICE, LENGTH = (50, 60), (20, 60), (1, 12), (20, 400)
"""Tokens of an example in the header, of a question, of a choice, of a text: any number between the two alike."""
HEADER = 350
_TOKENS_PER_WORD = 1.2  # of SmolLM2 and Qwen2.5


def ordinary_words() -> list[str]:
    """Of the text, those that consist of letters but for a mark at their end, in its order."""
    return [word for word in TEXT.read_text().split() if word.strip('.,;:()"').isalpha()]


def questions(n: int) -> Questions:
    walk = _walks()
    shots = [f"Question: {walk(SHOT)}\nAnswer: {walk(CHOICE)}\n\n" for _ in range(SHOTS)]
    header = "Answer the questions.\n\n" + "".join(shots)
    return [
        (f"{header}Question: {walk(QUESTION)}\nAnswer:", [" " + walk(CHOICE) for _ in range(CHOICES)]) for _ in range(n)
    ]


def texts(n: int) -> list[str]:
    walk = _walks()
    return [walk(LENGTH) for _ in range(n)]


def question_ids(n: int, vocab: int) -> IdPairs:
    some = _ids(vocab)
    header = some((HEADER, HEADER))
    return [(context, some(CHOICE)) for context in (header + some(QUESTION) for _ in range(n)) for _ in range(CHOICES)]


def text_ids(n: int, vocab: int) -> IdPairs:
    """Each behind its first id."""
    some = _ids(vocab)
    return [(text[:1], text[1:]) for text in (some(LENGTH) for _ in range(n))]


def _walks() -> Callable[[tuple[int, int]], str]:
    """Makes a text of as many tokens, more or less, from the least to the most."""
    words, rng = ordinary_words(), random.Random(0)
    following = defaultdict(list)
    for word, after in zip(words, words[1:] + words[:1], strict=True):
        following[word].append(after)

    def walk(bounds: tuple[int, int]) -> str:
        path = [rng.choice(words)]
        for _ in range(round(rng.randint(*bounds) / _TOKENS_PER_WORD) - 1):
            path.append(rng.choice(following[path[-1]]))
        return " ".join(path)

    return walk


def _ids(vocab: int) -> Callable[[tuple[int, int]], list[int]]:
    rng = np.random.default_rng(0)
    return lambda bounds: rng.integers(0, vocab, rng.integers(*bounds, endpoint=True)).tolist()
