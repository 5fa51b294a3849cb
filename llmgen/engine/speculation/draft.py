"""Guessing with a smaller model, whose cache follows the sequence that it guesses for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.endings import EndingRules
from llmgen.engine.interfaces import ModelLike
from llmgen.engine.sequence_state import SequenceState, common_prefix
from llmgen.errors import LLMGenError
from llmgen.model.runs import GUESSABLE, Part, Role
from llmgen.sampling.rejection import Guess
from llmgen.sampling.sampler import Sampler

MOST_TOKENS = 8
"""Generated tokens in one run."""

MOST_BEHIND = 128
"""Tokens that are computed after a pause where nobody counts what that costs."""
FEWEST = 16
"""Of the last tokens so many are enough to go on with: the draft is as often right about code, stories and answers as
with the whole prompt; not about a text to be repeated.  With half as many it is not."""
_RECENT, _SELDOM = 64, 20
"""Of the last tokens at most one in so many may lie beyond ``GUESSABLE`` if the draft is to guess others only."""

Run = Callable[..., Any]
"""Makes a call of the model: of a method, with its arguments; may raise Interrupted."""


class DraftSequence:
    """The draft's own cache for one sequence.

    Where computing all that it has missed would cost too much, it goes on with the last tokens only (:meth:`skip`), as
    if those before had not been there.  What it has seen changes what it guesses, and nothing else.
    """

    def __init__(self, model: ModelLike) -> None:
        self.state = SequenceState(model, model.new_sequence())
        self._agreed = 0  # leading tokens of the cache that are known to be the sequence's
        self._skipped = 0  # tokens of the sequence that it leaves out
        self._n_prompt = 0

    def begin(self, tokens: Sequence[int], n_prompt: int) -> None:
        """The sequence has any tokens now, the first ``n_prompt`` of which the model computes as prompt."""
        known = self.state.tokens[: self.state.cached]
        self._agreed = self.state.cut(common_prefix(known, tokens))
        self._skipped, self._n_prompt = 0, n_prompt

    def skip(self, tokens: Sequence[int], n: int) -> None:
        """Go on with the last n of the sequence's tokens: those that are missing before them are left out."""
        self.follow(tokens)
        self._skipped, self._n_prompt = len(tokens) - self._agreed - n, 0
        self.state.tokens[self._agreed :] = self.new(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Take the sequence's tokens, which begin as they did; guesses that were wrong are cut off."""
        guessed = self.state.tokens[self._agreed : self.state.cached]
        same = self._agreed + common_prefix(guessed, self.new(tokens))
        self._agreed = self.state.cut(min(same, len(tokens) - self._skipped - 1))
        self.state.tokens[self._agreed :] = self.new(tokens)

    def new(self, tokens: Sequence[int]) -> Sequence[int]:
        """The sequence's tokens that were not there before."""
        if self._agreed or not self._skipped:
            return tokens[self._skipped + self._agreed :]
        return [tokens[0], *tokens[self._skipped + 1 :]]  # the first may be the begin-of-text token

    def has_room(self, tokens: Sequence[int]) -> bool:
        """Whether they fit into the draft's context."""
        return len(tokens) - self._skipped <= self.n_ctx

    def missing(self, tokens: Sequence[int]) -> int:
        """How many of the tokens have to be computed as prompt before anything can be guessed."""
        n = self.behind(tokens)
        return n - 1 if self.state.cached < self._n_prompt or n > MOST_TOKENS else 0

    def behind(self, tokens: Sequence[int]) -> int:
        """How many of the tokens it has not computed; the last one at least has to follow."""
        return max(1, len(tokens) - self._skipped - self.state.cached)

    def has_paused(self, tokens: Sequence[int]) -> bool:
        """Whether many tokens are missing though the prompt is not."""
        return self.state.cached >= self._n_prompt and self.missing(tokens) > MOST_BEHIND

    @property
    def n_ctx(self) -> int:
        """How many tokens it can hold."""
        return self.state.model.n_ctx

    @property
    def waits_for_prompt(self) -> bool:
        """Whether tokens are missing that are better computed as prompt."""
        return self.state.length < self._n_prompt or self.state.n_missing > MOST_TOKENS

    def compute_prompt(self) -> None:
        """Compute the next piece of what is missing, as prompt; the last token is left for a run of generated ones.

        A run of eight generated tokens takes less than one of a short prompt, so a few tokens are computed as such.
        """
        if self.state.length >= self._n_prompt and self.state.n_missing <= FEWEST:
            first, end = self.state.length, len(self.state.tokens) - MOST_TOKENS
            self.state.model.forward([Part(self.state.seq, self.state.tokens[first:end], 0)], "guess")
            return
        end = len(self.state.tokens) - 1
        if self.state.length < self._n_prompt:
            end = min(end, self._n_prompt)
        self.state.prefill(end, wants_logits=False)

    def fork(self) -> DraftSequence:
        """An independent copy."""
        twin = object.__new__(DraftSequence)
        twin.state = self.state.fork()
        twin._agreed, twin._skipped, twin._n_prompt = self._agreed, self._skipped, self._n_prompt
        return twin

    def close(self) -> None:
        """Give the memory back."""
        self.state.seq.close()


@dataclass
class Question:
    """How a sequence goes on: up to n guesses, which ``sampler`` chooses."""

    sequence: DraftSequence
    tokens: Sequence[int]
    n: int
    sampler: Sampler
    rules: EndingRules
    goes_on: Callable[[Sequence[float]], bool] = lambda confidences: True
    """Whether one more guess pays after those of such confidence."""
    guesses: list[Guess] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    """The probability that the draft gave to each."""
    ready: bool = False
    """Whether the draft has computed the tokens, but for the last few."""
    role: Role = "generated"
    """"guess" where the most frequent tokens of the vocabulary are enough to choose from."""

    @property
    def open(self) -> bool:
        """Whether more guesses are wanted; nothing follows a token that ends the answer."""
        if len(self.guesses) >= self.n or self.sequence.state.length >= self.sequence.n_ctx:
            return False
        if not self.guesses:
            return True
        return self.rules.by_token(self.guesses[-1].token) is None and self.goes_on(self.confidences)

    def add(self, logits: NDArray[np.float32]) -> None:
        """Choose a guess from the draft's float32 [n_vocab]; none where the sampler finds none."""
        row = _fitted(logits, self.sampler.n_vocab)
        try:
            guess = self.sampler.guess(row)
        except LLMGenError:
            # a constraint may allow nothing, for example; whether that is an error, the answer itself shows
            self.n = len(self.guesses)
            return
        self.guesses.append(guess)
        self.confidences.append(_probability(logits, guess.token))
        self.sequence.state.tokens.append(guess.token)


class DraftModel:
    """The smaller model, and how several sequences ask it at once."""

    def __init__(self, model: ModelLike, all_tokens: bool = False) -> None:
        """all_tokens: never choose among the most frequent ones only."""
        self.model = model
        self.all_tokens = all_tokens

    def try_run(self, n: int, n_logits: int = 1) -> int:
        """Compute n tokens of no text, as a guess does; returns how many that were, 0 if there is no room for them."""
        if self.model.n_ctx < n:
            return 0
        seq = self.model.new_sequence()
        try:
            self.model.forward([Part(seq, [0] * n, n_logits)], "guess")
        finally:
            seq.close()
        return n

    def prepare(self, question: Question, run: Run) -> int:
        """Have the draft compute the tokens, but for the last few; returns how many it did.

        A prompt is computed in pieces, one each time, so that nobody waits long.  A draft
        whose context is full guesses no more.
        """
        sequence, tokens = question.sequence, question.tokens
        known = int(self.model.config.vocab_size)
        if not sequence.has_room(tokens) or max(sequence.new(tokens), default=0) >= known:
            return 0
        sequence.follow(tokens)
        before = sequence.state.length
        if sequence.waits_for_prompt:
            run(sequence.compute_prompt)
        question.ready = not sequence.waits_for_prompt
        return sequence.state.length - before

    def answer(self, questions: Sequence[Question], run: Run) -> list[int]:
        """Fill in the guesses of questions that are prepared; returns how many tokens each run computed for that."""
        sizes, asked = list[int](), list(questions)
        while asked := [question for question in asked if question.open]:
            sizes.append(self._step(_fitting(asked), run))
        return sizes

    def _step(self, questions: Sequence[Question], run: Run) -> int:
        """One run, and one more guess for each of these; returns how many tokens it computed."""
        parts = [
            Part(q.sequence.state.seq, q.sequence.state.tokens[q.sequence.state.length :]) for q in questions
        ]

        def choose(rows: NDArray[np.float32]) -> None:
            for question, row in zip(questions, rows, strict=True):
                question.add(row)

        role: Role = "guess" if all(q.role == "guess" for q in questions) else "generated"
        run(self.model.forward, parts, role, choose)
        return sum(len(part.ids) for part in parts)


def role_of_guesses(answer: Sequence[int]) -> Role:
    """Whether guesses among the most frequent tokens are enough, by the tokens of the answer so far."""
    recent = answer[-_RECENT:]
    return "guess" if _SELDOM * sum(token >= GUESSABLE for token in recent) <= len(recent) else "generated"


def _fitting(questions: Sequence[Question]) -> list[Question]:
    """As many of the tokens, from the first on, as one run takes."""
    fitting, n_tokens = list[Question](), 0
    for question in questions:
        n_tokens += question.sequence.state.n_missing
        if n_tokens <= MOST_TOKENS:
            fitting.append(question)
    return fitting


def _fitted(logits: NDArray[np.float32], n_vocab: int) -> NDArray[np.float32]:
    """The draft's logits as a row of the model's: float32 [n_vocab], -inf for tokens that the draft does not have."""
    if len(logits) >= n_vocab:
        return logits[:n_vocab]
    return np.concatenate([logits, np.full(n_vocab - len(logits), -np.inf, np.float32)])


def _probability(logits: NDArray[np.float32], token: int) -> float:
    """The probability of a token by float32 [n] (-inf: impossible), without any sampler.

    0 where logits of a damaged draft leave none: a sampler refuses those that it may choose only.
    """
    with np.errstate(invalid="ignore"):
        highest = logits.max()
        found = float(np.exp(logits[token] - highest) / np.exp(logits - highest).sum())
    return 0.0 if math.isnan(found) else found
