"""One prompt of a batch: what is asked, who works on it, what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.cached import CachedTokens, OnPrompt
from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.prompt import Prompt
from llmgen.engine.stopping import Interruptible
from llmgen.engine.writer import Writer
from llmgen.errors import Interrupted, LLMGenError
from llmgen.sampling.params import SamplingParams

TURN = 512
"""Prompt tokens that are computed between two tokens of the answers at work: how long these wait."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt of a batch: a text, completed as it stands, or token ids.

    ``params`` None stands for the batch's; ``key`` is the caller's, to know the answer by.
    """

    prompt: Prompt
    params: SamplingParams | None = None
    key: Any = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request.

    A request that was refused has only an error; one that an error ended has
    the result up to there, too.
    """

    request: Request
    result: GenerationResult | None = None
    error: LLMGenError | None = None


class Slot:
    """A request at work."""

    def __init__(self, request: Request, cache: CachedTokens, writer: Writer, calls: Interruptible) -> None:
        self.request = request
        self.cache = cache
        self.writer = writer
        self.calls = calls
        self.token = -1
        self.error: LLMGenError | None = None
        self.waiting = True  # for its prompt to be computed
        self._started = False

    @property
    def open(self) -> bool:
        """Whether it wants another token."""
        return self.writer.ending is None

    @property
    def writing(self) -> bool:
        """Whether it may have one now."""
        return self.open and not self.waiting

    @contextmanager
    def own_trouble(self) -> Iterator[None]:
        """Let an error or a timeout of this request end this request only."""
        try:
            yield
        except Interrupted:
            due = self.calls.due()
            if due is None or due.reason != "timeout":
                raise
            self.writer.ending, self.waiting = due, False
        except LLMGenError as error:
            self.fail(error)

    def fail(self, error: LLMGenError) -> None:
        """End with an error, and with what there is."""
        self.error = error
        self.writer.ending, self.waiting = Ending("interrupted", "error"), False

    def begin(self, ids: list[int]) -> None:
        """Take the prompt."""
        self.writer.cached_tokens = self.cache.begin(ids, "prompt")

    def start(self) -> None:
        """Start the clocks, when its prompt's turn has come."""
        if not self._started:
            self._started = True
            self.writer.start()
            self.calls.start()

    def prefill(self, on_prompt: OnPrompt | None = None) -> NDArray[np.float32] | None:
        """Compute the next TURN tokens of the prompt: float32 [n_vocab] of its last token, or None."""
        started = time.perf_counter()
        try:
            return self.cache.prefill(self.calls, "last" if self.open else "none", TURN, on_prompt)
        finally:
            self.count_prefill(started)

    def count_prefill(self, started: float) -> None:
        """Account for a computation of prompt tokens, whole or not, that began at ``started``."""
        self.writer.prefill_s += time.perf_counter() - started
        self.writer.prefill_tokens = self.cache.cached - self.writer.cached_tokens

    def step(self, logits: NDArray[np.float32]) -> GenerationEvent | None:
        """Choose the next token from float32 [n_vocab]."""
        event = self.writer.step(logits)
        if event:
            self.token = cast(int, event.token_id)
        if self.open:
            self.writer.ending = self.calls.due()
        return event
