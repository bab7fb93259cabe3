"""What probability a model gives to text: pairs, whole texts, choices, files of them, perplexity, KL divergence."""

from minfer_jax.scoring.choice import multiple_choice, multiple_choice_batch
from minfer_jax.scoring.dataset import DatasetScores, score_dataset
from minfer_jax.scoring.kl import kl_divergence, save_reference
from minfer_jax.scoring.pairs import score, score_stream
from minfer_jax.scoring.perplexity import perplexity
from minfer_jax.scoring.results import KLDivergence, MultipleChoice, Perplexity, Score, TextScore
from minfer_jax.scoring.rows import Columns
from minfer_jax.scoring.texts import score_texts
from minfer_jax.scoring.tokens import score_tokens

__all__ = [
    "Columns",
    "DatasetScores",
    "KLDivergence",
    "MultipleChoice",
    "Perplexity",
    "Score",
    "TextScore",
    "kl_divergence",
    "multiple_choice",
    "multiple_choice_batch",
    "perplexity",
    "save_reference",
    "score",
    "score_dataset",
    "score_stream",
    "score_texts",
    "score_tokens",
]
