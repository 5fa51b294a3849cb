"""How well a model predicts a text: mean negative log-likelihood and perplexity.

Over n scored tokens with nll_i = -ln p(token_i | those before it in its window):

    nll = mean of nll_i,  perplexity = e^nll
    error of nll = sqrt((mean of nll_i^2 - nll^2) / (n - 1)),  of perplexity = e^nll times that

Two ways to cut the text into windows of n_ctx tokens:

- chunks, the definition of llama.cpp's llama-perplexity (tools/perplexity): windows side by
  side, the rest of the text left out; in each the second half is scored, the first is context.
- sliding (Hugging Face's "perplexity of fixed-length models"): windows start every ``stride``
  tokens and each token is scored once, in the first window that has it.

Where the vocabulary wants a beginning-of-text token, the first token of every window is it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.interfaces import ModelLike, SequenceLike
from llmgen.engine.prompt import check_writes
from llmgen.errors import UsageError
from llmgen.model.runs import Part
from llmgen.sampling.logits import check_finite, log_total

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [start, stop) of the text in one pass, of which [first, stop) are scored."""

    start: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The figures so far; the errors are None for a single token."""

    n_tokens: int
    n_windows: int
    nll: float
    nll_error: float | None

    @property
    def perplexity(self) -> float:
        """e^nll; infinite where that is too large for a float."""
        return math.exp(self.nll) if self.nll < 709 else math.inf

    @property
    def error(self) -> float | None:
        """One standard error of the perplexity."""
        return None if self.nll_error is None else self.perplexity * self.nll_error


def check_window(n_ctx: int, stride: int | None = None) -> None:
    """Raises UsageError where windows of ``n_ctx`` tokens, ``stride`` apart, score no token of any text."""
    if n_ctx < 2:
        raise UsageError(f"a window of {n_ctx} tokens has none to score; use at least 2 (-c)")
    if stride is None and n_ctx < 3:
        raise UsageError(f"a chunk of {n_ctx} tokens has none to score; use at least 3 (-c), or --stride")
    if stride is not None and not 1 <= stride < n_ctx:
        allowed = "1" if n_ctx == 2 else f"from 1 to {n_ctx - 1}"
        raise UsageError(f"the stride must be {allowed}, less than the context, not {stride} (--stride)")


def windows(n_tokens: int, n_ctx: int, stride: int | None = None) -> list[Window]:
    """The windows of a text; ``stride`` None is llama.cpp's chunks.  Raises UsageError where there is none."""
    check_window(n_ctx, stride)
    if n_tokens < 2:
        found = "1 token" if n_tokens else "no tokens"
        raise UsageError(f"the text has {found}, and at least 2 are needed; give a longer text")
    if stride is None:
        if n_tokens < n_ctx:
            raise UsageError(
                f"the text has {n_tokens} tokens, fewer than one chunk of {n_ctx}; give a longer text, a smaller"
                " context (-c), or --stride"
            )
        # the logits of token j predict token j + 1: with those from n_ctx // 2 on, the next ones are scored
        starts = range(0, n_tokens - n_ctx + 1, n_ctx)
        return [Window(start, start + n_ctx // 2 + 1, start + n_ctx) for start in starts]
    parts = [Window(0, 1, min(n_ctx, n_tokens))]
    while parts[-1].stop < n_tokens:
        start = parts[-1].start + stride
        parts.append(Window(start, parts[-1].stop, min(start + n_ctx, n_tokens)))
    return parts


def measure(
    model: ModelLike,
    ids: Sequence[int],
    parts: Sequence[Window],
    bos_id: int | None = None,
    on_tokens: Callable[[int], object] | None = None,
) -> Iterator[Perplexity]:
    """The figures after each window; ``bos_id`` where every window is to begin with that token.

    ``on_tokens`` is called with the number of tokens computed, after each piece of a window.
    Raises :class:`LLMGenError` where the model's logits are not finite, or its file has changed.
    """
    sums, report = _Sums(), on_tokens or (lambda n: None)
    check_writes(model)
    seq = model.new_sequence()
    try:
        for number, window in enumerate(parts, 1):
            tokens = list(ids[window.start : window.stop])
            if bos_id is not None:
                tokens[0] = bos_id
            seq.clear()
            sums.add(_window(model, seq, tokens, window.first - window.start, report))
            figures = Perplexity(sums.n, number, sums.mean, sums.error)
            _log.debug("window %d of %d: perplexity %.4f", number, len(parts), figures.perplexity)
            model.check_file()
            yield figures
    finally:
        seq.close()


def _window(
    model: ModelLike, seq: SequenceLike, tokens: list[int], first: int, report: Callable[[int], object]
) -> NDArray[np.float64]:
    """-ln p of tokens [first:] of an empty sequence: float64 [len(tokens) - first]."""
    for start in range(0, first - 1, model.max_prompt_tokens):
        part = tokens[start : min(start + model.max_prompt_tokens, first - 1)]
        model.forward([Part(seq, part, 0)], "prompt")
        report(len(part))
    size = min(model.max_prompt_tokens, model.max_outputs)
    nll: list[float] = []
    for start in range(first - 1, len(tokens) - 1, size):
        part = tokens[start : min(start + size, len(tokens) - 1)]
        targets = tokens[start + 1 : start + 1 + len(part)]
        nll += model.forward([Part(seq, part, len(part))], "prompt", partial(_nll, targets))
        report(len(part))
    return np.array(nll)


def _nll(targets: list[int], rows: NDArray[np.float32]) -> list[float]:
    """-ln p of a token under each row of logits: rows float32 [n, n_vocab]."""
    check_finite(rows)
    return [log_total(row) - float(row[t]) for row, t in zip(rows, targets, strict=True)]


@dataclass(slots=True)
class _Sums:
    """Number, mean and spread of all nll so far.

    Joined as by Chan, Golub and LeVeque (1979), so that a long text costs neither memory nor accuracy.
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of (nll - mean)^2

    def add(self, nll: NDArray[np.float64]) -> None:
        mean, total = float(nll.mean()), self.n + len(nll)
        shift = mean - self.mean
        self.squares += float(((nll - mean) ** 2).sum()) + shift * shift * self.n * len(nll) / total
        self.mean += shift * len(nll) / total
        self.n = total

    @property
    def error(self) -> float | None:
        return math.sqrt(self.squares / self.n / (self.n - 1)) if self.n > 1 else None
