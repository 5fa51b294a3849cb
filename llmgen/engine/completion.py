"""One request's answer as it grows: logits in, events out.  It knows nothing of models and caches."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.endings import EndingRules
from llmgen.engine.events import Ending, GenerationEvent, GenerationResult, Timings
from llmgen.engine.interfaces import TokenizerLike
from llmgen.engine.speculation.stats import SpeculationStats
from llmgen.sampling.logits import check_finite
from llmgen.sampling.params import SamplingParams
from llmgen.sampling.rejection import Guess
from llmgen.sampling.sampler import Sampler
from llmgen.sampling.scores import TokenScore

_log = logging.getLogger(__name__)


class Completion:
    """Samples one answer's tokens, turns them into text, and knows when it is complete.

    Feed it logits with :meth:`step` until ``ending`` is set, then call
    :meth:`end`.  The counters are filled in by whoever runs the model.
    """

    def __init__(
        self,
        tokenizer: TokenizerLike | None,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        n_vocab: int,
        n_ctx: int,
    ) -> None:
        self.params = params
        self.rules = EndingRules(params, tokenizer)
        self.prompt_tokens = len(prompt_ids)
        self.context_keep = max(params.context_keep, int(_begins_text(tokenizer, prompt_ids)))
        """How many of the first tokens are kept when the context is shifted."""
        self.tokens: list[int] = []
        self.chosen: int | None = None
        """The token chosen last, whether it is part of the answer or only ends it."""
        self.ending: Ending | None = None
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.prefill_tokens = 0
        self.cached_tokens = 0
        self.decode_steps = 0
        self.decode_tokens = 0
        self.sampler = Sampler(
            params,
            n_vocab,
            prompt_ids=prompt_ids,
            eog_ids=() if tokenizer is None else tokenizer.eog_ids,
            tokenizer=tokenizer,
            n_ctx=n_ctx,
        )
        self._output = self.rules.new_text()
        self._scores: list[TokenScore] = []
        self._started: float | None = None
        self._ttft_s: float | None = None

    @property
    def text(self) -> str:
        """The text that has been given out in events."""
        return self._output.text

    def start(self) -> None:
        """Start the clock, unless it is running already."""
        if self._started is not None:
            return
        self._started = time.perf_counter()

    def step(self, logits: NDArray[np.float32], guess: Guess | None = None) -> GenerationEvent | None:
        """Choose a token from float32 [n_vocab]; sets ``ending`` if the answer is complete.

        A ``guess`` is judged by rejection sampling.
        Returns None for a token that only ends the answer.
        """
        started = time.perf_counter()
        event = self._step(logits, guess)
        if self.decode_steps:  # the first token's sampling belongs to no decode step
            self.decode_s += time.perf_counter() - started
            self.decode_tokens += 1
        return event

    def _step(self, logits: NDArray[np.float32], guess: Guess | None) -> GenerationEvent | None:
        if self._ttft_s is None:
            check_finite(logits)  # of a damaged file; later ones the sampler refuses where they matter
        choice = self.sampler.sample(logits, guess)
        self.chosen = token = choice.token_id
        if self._ttft_s is None:
            self._ttft_s = self._elapsed()
        self.ending = self.rules.by_token(token)
        if self.ending is not None:
            return None
        self.tokens.append(token)
        text = self._output.push(token)
        if choice.score:
            self._scores.append(choice.score)
        self.ending = self.rules.by_text(self._output) or self.rules.by_length(len(self.tokens))
        return GenerationEvent(
            text,
            token,
            logprob=choice.score.logprob if choice.score else None,
            top_logprobs=choice.score.top if choice.score else (),
            elapsed_s=self._elapsed(),
        )

    def count_decode(self, seconds: float) -> None:
        """Account for one forward pass after the prompt's."""
        self.decode_s += seconds
        self.decode_steps += 1

    def end(self, speculation: SpeculationStats | None = None) -> GenerationEvent:
        """The last event, once ``ending`` is set: the text that was held back, and the result."""
        ending = self.ending
        assert ending is not None
        rest = self._output.finish()
        result = GenerationResult(
            text=self._output.text,
            token_ids=tuple(self.tokens),
            finish_reason=ending.reason,
            prompt_tokens=self.prompt_tokens,
            seed=self.sampler.seed,
            timings=self._timings(),
            finish_detail=ending.detail,
            matched=ending.matched,
            logprobs=None if self.params.logprobs is None else tuple(self._scores),
            speculation=speculation,
        )
        _log.debug(
            "answer of %d tokens ended after %.3f s: %s (%s)",
            len(self.tokens),
            self._elapsed(),
            ending.reason,
            ending.detail,
        )
        return GenerationEvent(rest, None, elapsed_s=self._elapsed(), result=result)

    def _timings(self) -> Timings:
        return Timings(
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            ttft_s=self._ttft_s,
            sampling_s=self.sampler.sampling_s,
            prefill_tokens=self.prefill_tokens,
            cached_tokens=self.cached_tokens,
            decode_steps=self.decode_steps,
            decode_tokens=self.decode_tokens,
        )

    def _elapsed(self) -> float:
        return 0.0 if self._started is None else time.perf_counter() - self._started


def _begins_text(tokenizer: TokenizerLike | None, ids: Sequence[int]) -> bool:
    """Whether a prompt begins with the begin-of-text token, for a model that expects one.

    Such a model was never trained without: what follows in its place is read badly.
    """
    return tokenizer is not None and tokenizer.add_bos and len(ids) > 0 and ids[0] == tokenizer.bos_id
