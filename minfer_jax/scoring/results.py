"""What scoring gives back: plain values, ready for JSON through ``to_dict``. All logarithms are natural."""

from dataclasses import dataclass
from typing import Any

from minfer_jax.display import html
from minfer_jax.display.text import counted, fact_texts, quoted, table_lines
from minfer_jax.records import FactRecord, Record, TokenRecord


@dataclass(frozen=True)
class Score(TokenRecord):
    """Log-probability of a continuation after its context.

    logprob: sum of token_logprobs. tokens: ids of the continuation, one log-probability each.
    is_greedy: every one of them is the model's likeliest token at its place.
    truncated: the context did not fit the window and lost ids on its left.
    empty: no token was scored, and logprob is the 0.0 of an empty sum.
    merged: the text's ids do not start with the context's, because a token spans the boundary: part of the
        continuation then went unscored. With ``empty``, all of it.
    """

    logprob: float
    token_logprobs: list[float]
    tokens: list[int]
    is_greedy: bool
    truncated: bool = False
    empty: bool = False
    merged: bool = False

    def flags(self) -> list[str]:
        """Names of the flags that are set."""
        return [name for name in ("is_greedy", "truncated", "empty", "merged") if getattr(self, name)]

    def summary(self) -> str:
        return ", ".join([f"{self.logprob:.4f} nats", counted(len(self.tokens), "token"), *self.flags()])


@dataclass(frozen=True)
class TextScore(TokenRecord):
    """Log-probability of every token of a text.

    tokens: ids of the text, without what stands before them. prefix: the BOS that stood before the text, or nothing.
    token_logprobs: one value per id; the first is None where nothing stood before it (``np.array(.., float)`` makes
        it NaN).
    logprob: sum of the values there are.
    windows: how many context windows it took; in each, the first ids see no further back than its beginning.
    """

    logprob: float
    token_logprobs: list[float | None]
    tokens: list[int]
    prefix: list[int]
    windows: int

    def summary(self) -> str:
        windows = [f"{self.windows} windows"] if self.windows > 1 else []
        return ", ".join([f"{self.logprob:.4f} nats", counted(len(self.tokens), "token"), *windows])


@dataclass(frozen=True)
class MultipleChoice(Record):
    """Choices after one context, ranked by three rules.

    scores, sums, per_token, per_byte: one entry per choice; bytes are those of the continuation in UTF-8, its leading
    space included. best_by_sum, best_by_token, best_by_byte: index of the choice that each rule prefers, the first
    of equals.
    """

    context: str
    choices: list[str]
    scores: list[Score]
    sums: list[float]
    per_token: list[float]
    per_byte: list[float]
    best_by_sum: int
    best_by_token: int
    best_by_byte: int

    HEADER = ("choice", "logprob", "per token", "per byte", "best by")

    def rows(self) -> list[tuple[str, float, float, float, str]]:
        """A row for each choice under ``HEADER``, with the rules by which it is the best."""
        best = {"sum": self.best_by_sum, "token": self.best_by_token, "byte": self.best_by_byte}
        rules = [", ".join(rule for rule, winner in best.items() if winner == i) for i in range(len(self.choices))]
        return list(zip(map(quoted, self.choices), self.sums, self.per_token, self.per_byte, rules, strict=True))

    def __str__(self) -> str:
        return "\n".join([f"MultipleChoice: {quoted(self.context)}", *table_lines(self.rows(), self.HEADER)])

    def _repr_html_(self) -> str:
        return html.block("MultipleChoice", html.table(self.rows(), self.HEADER), note=quoted(self.context))


@dataclass(frozen=True)
class Perplexity(FactRecord):
    """Perplexity of a text, and how it was measured.

    perplexity: exp(nll). nll: mean negative log-probability per scored token. standard_error: of perplexity, from the
    spread of single tokens. protocol, n_ctx, windows: how the text was cut.
    n_tokens: ids of the text. n_scored: ids with a log-probability.
    logprob: their sum. n_words, n_bytes: of the text; word_perplexity, byte_perplexity, bits_per_byte spread logprob
    over them, which makes models with different vocabularies comparable. Protocol "rolling" only: the other one
    leaves half of the text unscored, so there they are None.
    """

    perplexity: float
    standard_error: float
    nll: float
    logprob: float
    protocol: str
    n_ctx: int
    windows: int
    n_tokens: int
    n_scored: int
    n_words: int
    n_bytes: int
    word_perplexity: float | None = None
    byte_perplexity: float | None = None
    bits_per_byte: float | None = None


@dataclass(frozen=True)
class KLDivergence(FactRecord):
    """How far a model's distributions over the next token are from those of a reference, and how it was measured.

    Of KL(reference || model), in nats per scored token: mean, standard_error, median, quantiles, maximum.
    same_top: share of tokens, in percent, at which both find the same token likeliest; same_top_error.
    perplexity, reference_perplexity: of the text, by the two; perplexity_ratio: the first divided by the second, whose
    error knows that both read the same tokens, and so is far smaller than the errors of the two.
    rms_delta_p, mean_delta_p: of the probability of the text's own token, model minus reference, in percent.
    ..._error: standard errors, from the spread of single tokens.
    protocol, n_ctx, windows, n_tokens, n_scored: as in Perplexity.
    model, reference: provenance of the two, with the sha256 of their files; reference["saved"] tells whether it came
    from a saved file, in which distributions are rounded to 16 bits.
    """

    mean: float
    standard_error: float
    median: float
    quantile_90: float
    quantile_95: float
    quantile_99: float
    quantile_999: float
    maximum: float
    same_top: float
    same_top_error: float
    perplexity: float
    perplexity_error: float
    reference_perplexity: float
    reference_perplexity_error: float
    perplexity_ratio: float
    perplexity_ratio_error: float
    rms_delta_p: float
    rms_delta_p_error: float
    mean_delta_p: float
    mean_delta_p_error: float
    protocol: str
    n_ctx: int
    windows: int
    n_tokens: int
    n_scored: int
    model: dict[str, Any]
    reference: dict[str, Any]

    def facts(self) -> dict[str, str]:
        facts = self.to_dict()
        for name in ("model", "reference"):
            about = facts[name]
            how = ", ".join(about[key] for key in ("implementation", "dtype", "written_by") if key in about)
            facts[name] = f"{', '.join(about['file'])} ({how})"
        return fact_texts(facts, percent=("same_top", "rms_delta_p", "mean_delta_p"))
