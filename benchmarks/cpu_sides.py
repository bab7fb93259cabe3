"""The sides of ``benchmarks.cpu_vs_llamacpp`` and ``benchmarks.scoring``, each in a process of its own that loads a
model and answers one request at a time. A peer's may run in another interpreter, which needs that peer and not this
package.

A request is one line of JSON on stdin, [method, *arguments]; the answer, one line on stdout, comes when the work is
done. Linux only: memory and processor time are read from /proc.
"""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

Pairs = list[tuple[str, str]]
Questions = list[tuple[str, list[str]]]
"""(context, choices)"""
Logprobs = list[tuple[list[int], list[float]]]
"""Of each pair: ids of the continuation, and their log-probabilities."""

PROMPT = list(range(1000, 1032))
CONTEXT = 512  # of llama.cpp: the most that is measured, so that it keeps room for no more
_ROOT = Path(__file__).parent.parent
_POLL_S = 0.05
TICKS = os.sysconf("SC_CLK_TCK")


class MinferJax:
    """This package. Promotion is off, so that nothing is compiled while the other side works."""

    def imports(self) -> None:
        import minfer_jax  # noqa: F401

    def load(self, path: str, options: dict[str, Any]) -> dict[str, Any]:
        import jax

        import minfer_jax as mj

        model = mj.load(path, **options)
        jax.block_until_ready(model.params)
        self.runtime = mj.Runtime(model, promotion="off")
        self.sessions: dict[int, Any] = {}
        return model.provenance

    def first_token(self) -> None:
        import minfer_jax as mj

        mj.generate(self.runtime, PROMPT, max_tokens=1, sampler=mj.Sampler(temperature=0))

    def decode(self, n: int) -> None:
        session = self._session(n)
        session.generate(session.start())

    def prefill(self, n: int) -> None:
        import jax

        jax.block_until_ready(self._session(n).prefill())

    def score(self, pairs: Pairs, reuse: bool = False) -> Logprobs:
        import minfer_jax as mj

        assert not reuse  # within a call texts that begin alike share a row anyway
        scores = mj.score(self.runtime, pairs, progress=False)
        return [(score.tokens, score.token_logprobs) for score in scores]

    def texts(self, texts: list[str]) -> Logprobs:
        """Of each text, all ids but the one that nothing stands before."""
        import minfer_jax as mj

        out = []
        for score in mj.score_texts(self.runtime, texts, progress=False):
            values = [value for value in score.token_logprobs if value is not None]
            out.append((score.tokens[-len(values) :], values))
        return out

    def choices(self, questions: Questions) -> Logprobs:
        """Of each choice, as ``score`` of its pair."""
        import minfer_jax as mj

        answers = mj.multiple_choice_batch(self.runtime, questions, progress=False)
        return [(score.tokens, score.token_logprobs) for answer in answers for score in answer.scores]

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each."""
        return [len(self.runtime.tokenizer.encode(text)) for text in texts]

    def in_harness(self, method: str, requests: list[tuple[str, ...]]) -> list[Any]:
        from minfer_jax.integrations.lm_eval import MinferLM

        return ask_harness(MinferLM(self.runtime), method, requests)

    def compile_seconds(self) -> float:
        """Of all programs of this process so far."""
        return sum(program.compile_seconds for program in self.runtime.cache_info().programs.values())

    def _session(self, n: int) -> Any:
        from minfer_jax.profiling.workload import Session

        if n not in self.sessions:
            self.sessions[n] = Session(self.runtime, 1, 0, n)
        return self.sessions[n]


class LlamaCpp:
    """llama.cpp through llama-cpp-python, by the calls that cost it least: ``eval`` without a sampler behind it (of a
    prompt it computes the last token's logits only), and for scoring ``eval`` with ``logits_all=True``."""

    def imports(self) -> None:
        import llama_cpp  # noqa: F401  # pyright: ignore[reportMissingImports]

    def load(self, path: str, options: dict[str, Any]) -> None:
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

        self.llm = Llama(path, n_ctx=CONTEXT, n_batch=CONTEXT, verbose=False, **options)

    def first_token(self) -> None:
        self.llm.eval(PROMPT)
        self._likeliest()

    def decode(self, n: int) -> None:
        self.llm.reset()
        token = PROMPT[0]
        for _ in range(n):
            self.llm.eval([token])
            token = self._likeliest()

    def prefill(self, n: int) -> None:
        self.llm.reset()
        self.llm.eval(np.random.default_rng(0).integers(0, self.llm.n_vocab(), n).tolist())
        self._likeliest()

    def score(self, pairs: Pairs, reuse: bool = False) -> Logprobs:
        """reuse: keep what a request has in common with the one before, as ``Llama.generate`` does."""
        llm, out = self.llm, []
        for context, continuation in pairs:
            n = len(llm.tokenize(context.encode()))
            out.append(self._logprobs(llm.tokenize((context + continuation).encode()), n, reuse))
        return out

    def texts(self, texts: list[str]) -> Logprobs:
        """Of each text, all ids but the one that nothing stands before."""
        return [self._logprobs(self.llm.tokenize(text.encode()), 1) for text in texts]

    def _logprobs(self, ids: list[int], n: int, reuse: bool = False) -> tuple[list[int], list[float]]:
        """The ids from number n on, and their log-probabilities."""
        llm = self.llm
        seen = llm.input_ids[: llm.n_tokens].tolist()
        llm.reset()
        llm.n_tokens = llm.longest_token_prefix(seen, ids[:-1]) if reuse else 0
        llm.eval(ids[llm.n_tokens : -1])
        logits = llm.scores[n - 1 : len(ids) - 1]
        top = logits.max(-1)
        sums = top + np.log(np.exp(logits - top[:, None]).sum(-1))
        return ids[n:], (logits[np.arange(len(ids) - n), ids[n:]] - sums).tolist()

    def _likeliest(self) -> int:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        logits = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return int(np.ctypeslib.as_array(logits, (self.llm.n_vocab(),)).argmax())


class HF:
    """The ``hf`` model of lm-evaluation-harness: transformers on the file's weights, expanded to float32."""

    def load(self, path: str, options: dict[str, Any]) -> dict[str, str]:
        from importlib.metadata import version

        from lm_eval.models.huggingface import HFLM

        file = Path(path)
        self.lm = HFLM(pretrained=str(file.parent), gguf_file=file.name, dtype="float32", device="cpu", **options)
        return {name: version(name) for name in ("lm_eval", "transformers", "torch")}

    def in_harness(self, method: str, requests: list[tuple[str, ...]]) -> list[Any]:
        return ask_harness(self.lm, method, requests)


def ask_harness(lm: Any, method: str, requests: list[tuple[str, ...]]) -> list[Any]:
    """What a model of lm-evaluation-harness answers to ``loglikelihood`` of (context, continuation), or to
    ``loglikelihood_rolling`` of (text,)."""
    from lm_eval.api.instance import Instance

    asked = [Instance(method, {}, tuple(request), i, ("benchmark", i, 1)) for i, request in enumerate(requests)]
    return getattr(lm, method)(asked, disable_tqdm=True)


SIDES = {"minfer-jax": MinferJax, "llama.cpp": LlamaCpp, "hf": HF}


class Worker:
    """The process of a side, to be used in a ``with`` block.

    peak_anon: bytes of memory that no file backs, the most that was seen while it worked.
    """

    def __init__(self, side: str, python: str) -> None:
        command = [python, "-m", "benchmarks.cpu_sides", side]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._proc = Path(f"/proc/{self._process.pid}")
        self._side = side
        self._answered, self._idle = None, np.zeros(2)
        self.peak_anon = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # no more requests: it ends

    def ask(self, method: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        if self._answered is not None:
            self._idle += self._clocks() - self._answered
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        while not select.select([self._process.stdout], [], [], _POLL_S)[0]:
            self.peak_anon = max(self.peak_anon, self._memory("RssAnon"))
        if not (answer := self._process.stdout.readline()):
            sys.exit(f"{self._side} ended in {method!r}; its last words are above")
        self.peak_anon = max(self.peak_anon, self._memory("RssAnon"))
        self._answered = self._clocks()
        return json.loads(answer)

    def peak(self) -> int:
        """Bytes of memory, pages of files included: the most there ever was."""
        return self._memory("VmHWM")

    def idle_share(self) -> float:
        """How much of one processor it used between answers and the requests after them."""
        seconds, used = self._idle
        return used / seconds

    def _memory(self, field: str) -> int:
        lines = (self._proc / "status").read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)

    def _clocks(self) -> np.ndarray:
        """Seconds that pass, and of processor time."""
        user, system = (self._proc / "stat").read_text().rpartition(")")[2].split()[11:13]
        return np.array([time.perf_counter(), (int(user) + int(system)) / TICKS])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    side = SIDES[sys.argv[1]]()
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answers.write(json.dumps(getattr(side, method)(*arguments)) + "\n")


if __name__ == "__main__":
    main()
