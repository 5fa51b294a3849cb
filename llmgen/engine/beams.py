"""Beam search: the most likely continuations, several hypotheses side by side.

A hypothesis with n tokens whose log-probabilities sum to s has the score
s / n ** length_penalty (Wu et al. 2016 in the simple form that Hugging Face uses);
the token that ends it counts.  Every step extends each live hypothesis by its most
likely tokens and keeps the best ``n_beams`` of all; one that ends is put aside.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.arguments import whole_number, yes_or_no
from llmgen.engine.endings import EndingRules
from llmgen.engine.events import Ending, GenerationResult, Timings
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.prompt import check_prompt, check_writes
from llmgen.engine.scheduler import CANCELLED, MAX_SLOTS
from llmgen.engine.sequence_state import OnPrompt, SequenceState, common_prefix
from llmgen.engine.stopping import Cancel, Limits, Watchdog, attach_result
from llmgen.errors import Interrupted, LLMGenError, UsageError
from llmgen.model.runs import Part
from llmgen.sampling.checks import checked_number
from llmgen.sampling.logits import check_finite
from llmgen.sampling.params import SamplingParams, checked_params
from llmgen.sampling.sampler import Sampler
from llmgen.sampling.scores import TokenScore

MAX_BEAMS = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """How to search.

    ``length_penalty`` over 0 favours long answers, under 0 short ones, 0 compares
    plain sums.  With ``early_stopping`` the search ends as soon as ``n_beams``
    answers are complete; without, when no live hypothesis has a better score than
    the worst of them (exact for a penalty of 0 or less).
    """

    n_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        n_beams = whole_number("beams (--beams)", self.n_beams, 1, MAX_BEAMS)
        penalty = checked_number("length_penalty", self.length_penalty, 1.0, -10, 10)
        yes_or_no("early_stopping (--early-stopping)", self.early_stopping)
        object.__setattr__(self, "n_beams", n_beams)
        object.__setattr__(self, "length_penalty", penalty)


@dataclass(frozen=True, slots=True)
class Beam:
    """One answer of the search: ``score`` ranks it, ``logprob`` is the sum over its tokens."""

    result: GenerationResult
    score: float
    logprob: float

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {"score": self.score, "logprob": self.logprob, **self.result.as_dict()}


@dataclass
class _Hypothesis:
    """A live hypothesis: its tokens, the cache that holds all of them but the last, its sampler's memory."""

    cache: SequenceState
    sampler: Sampler
    tokens: tuple[int, ...] = ()
    logprob: float = 0.0
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class _Step:
    """An extension of a live hypothesis by one token."""

    parent: _Hypothesis
    token: int
    logprob: float  # of the whole
    score: TokenScore | None


@dataclass(frozen=True, slots=True)
class _Ended:
    score: float
    logprob: float
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    ending: Ending


@dataclass
class _Clock:
    """Where the time went."""

    started: float = field(default_factory=time.perf_counter)
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    decode_s: float = 0.0
    steps: int = 0


class BeamSearch:
    """One search; :meth:`run` gives the answers, the best first."""

    def __init__(
        self,
        model: ModelLike,
        tokenizer: TokenizerLike | None,
        prompt_ids: Sequence[int],
        params: SamplingParams | None,
        options: BeamOptions,
        cancel: Cancel | None = None,
        on_prompt: OnPrompt | None = None,
    ) -> None:
        """Of ``params``, only biases, bans, penalties, stops and limits apply; nothing is drawn at random.

        ``on_prompt`` as in :meth:`Session.stream`.
        """
        check_writes(model)
        params = checked_params(params)
        if params.context_full == "shift":
            raise UsageError(
                "context_full=shift (--context-full) does not go with beams: leave one of them out"
            )
        self._model = model
        self._tokenizer = tokenizer
        self._prompt = check_prompt(prompt_ids, model)
        self._params = params.with_(temp=0.0)
        self._rules = EndingRules(params, tokenizer)
        self._options = options
        self._on_prompt = on_prompt
        self._limits = Limits(params.timeout)
        self._watchdog = Watchdog(model, cancel)
        self._tail = max((len(text.encode()) for text in params.stop), default=0) + 8
        self._live: list[_Hypothesis] = []
        self._ended: list[_Ended] = []
        self._clock = _Clock()
        self.found: list[Beam] = []
        """The answers, the best first, once the search has ended, however it ended."""
        self._first = self._new_hypothesis()

    def _new_hypothesis(self) -> _Hypothesis:
        n_vocab, n_ctx = int(self._model.config.vocab_size), int(self._model.n_ctx)
        sampler = Sampler(
            self._params,
            n_vocab,
            prompt_ids=self._prompt,
            eog_ids=() if self._tokenizer is None else self._tokenizer.eog_ids,
            tokenizer=self._tokenizer,
            n_ctx=n_ctx,
        )
        return _Hypothesis(SequenceState(self._model, self._model.new_sequence()), sampler)

    def run(self) -> list[Beam]:
        """Search.  A timeout or the cancel token ends it with the answers so far, marked as such.

        Ctrl-C and errors raise; :attr:`found` then holds what there was before, and so
        does the ``result`` of KeyboardInterrupt.
        """
        self._live = [self._first]
        self._watchdog.start(self._limits)
        failure: BaseException | None = None
        ending: Ending | None
        try:
            ending = self._search()
            self._model.check_file()
        except KeyboardInterrupt as error:
            ending, failure = Ending("interrupted", "keyboard"), error
        except Interrupted:
            ending = self._watchdog.due(self._limits) or CANCELLED
        except (LLMGenError, MemoryError, OSError) as error:
            ending, failure = Ending("interrupted", "error"), error
        finally:
            self._watchdog.close()
            for hypothesis in self._live:
                hypothesis.cache.seq.close()
        if ending is not None:
            for hypothesis in self._live:
                self._put_aside(hypothesis.tokens, hypothesis.logprob, hypothesis.scores, ending, 0)
        clock = self._clock
        _log.debug(
            "beam search ended after %d steps in %.3f s", clock.steps, clock.prefill_s + clock.decode_s
        )
        ranked = sorted(self._ended, key=lambda ended: -ended.score)
        self.found = [self._beam(ended) for ended in ranked[: self._options.n_beams]]
        if isinstance(failure, KeyboardInterrupt):
            attach_result(failure, self.found)
        if failure is not None:
            raise failure
        return self.found

    def _search(self) -> Ending | None:
        """Until the best are known (None), or something ends all that are alive."""
        rows = [self._prefill()]
        if (ending := self._rules.by_length(0)) is not None:
            return ending
        while True:
            self._keep(self._best_steps(rows))
            if self._done():
                return None
            first = self._live[0]  # all have as many tokens
            ending = (
                self._rules.by_length(len(first.tokens))
                or self._rules.by_context(int(first.cache.seq.length), self._model.n_ctx)
                or self._watchdog.due(self._limits)
            )
            if ending is not None:
                return ending
            rows = self._decode()

    def _prefill(self) -> NDArray[np.float32]:
        started = time.perf_counter()
        cache, row = self._first.cache, None
        cache.begin(self._prompt, "none")
        try:
            self._report(cache)
            while cache.n_missing:
                if cache.cached and self._watchdog.due(self._limits):
                    raise Interrupted("the prompt's computation was stopped: run it again")
                row = self._watchdog.call([self._limits], cache.prefill, len(self._prompt), True)
                self._report(cache)
        finally:
            self._clock.prefill_tokens = cache.cached
            self._clock.prefill_s = time.perf_counter() - started
        assert row is not None
        check_finite(row)
        return row

    def _report(self, cache: SequenceState) -> None:
        if self._on_prompt:
            self._on_prompt(cache.cached, len(self._prompt))

    def _decode(self) -> list[NDArray[np.float32]]:
        """The logits after every live hypothesis: float32 [n_vocab] each."""
        started = time.perf_counter()
        rows: list[NDArray[np.float32]] = []
        for first in range(0, len(self._live), MAX_SLOTS):
            part = self._live[first : first + MAX_SLOTS]
            for hypothesis in part:
                hypothesis.cache.tokens.append(hypothesis.tokens[-1])
            parts = [Part(h.cache.seq, [h.tokens[-1]]) for h in part]
            rows.extend(self._watchdog.call([self._limits], self._model.forward, parts, "generated"))
        self._clock.decode_s += time.perf_counter() - started
        self._clock.steps += 1
        return rows

    def _best_steps(self, rows: list[NDArray[np.float32]]) -> list[_Step]:
        """The best steps over all live hypotheses, twice as many as beams: half of them may end one."""
        n = 2 * self._options.n_beams
        steps = [step for h, row in zip(self._live, rows, strict=True) for step in self._steps(h, row, n)]
        steps.sort(key=lambda step: -step.logprob)  # stable: of equals, the earlier hypothesis, the lower id
        return steps[:n]

    def _steps(self, hypothesis: _Hypothesis, row: NDArray[np.float32], n: int) -> list[_Step]:
        n_top = self._params.logprobs
        ranked = hypothesis.sampler.best(row, max(n, n_top or 0))
        top = tuple(ranked[:n_top])
        steps = []
        for one in ranked[:n]:
            if one.logprob == -math.inf:
                break
            score = None if n_top is None else TokenScore(one.token_id, one.logprob, top)
            steps.append(_Step(hypothesis, one.token_id, hypothesis.logprob + one.logprob, score))
        return steps

    def _keep(self, steps: list[_Step]) -> None:
        """Make the best steps the live hypotheses; put aside those that end one."""
        chosen: list[_Step] = []
        for rank, step in enumerate(steps):
            ending = self._rules.by_token(step.token) or self._stopped(step)
            if ending is None:
                chosen.append(step)
            elif rank < self._options.n_beams:
                scores = (*step.parent.scores, step.score) if step.score else ()
                is_end = self._rules.by_token(step.token) is not None
                tokens = step.parent.tokens if is_end else (*step.parent.tokens, step.token)
                self._put_aside(tokens, step.logprob, scores, ending, int(is_end))
            if len(chosen) == self._options.n_beams:
                break
        self._live = self._extended(chosen)

    def _extended(self, chosen: list[_Step]) -> list[_Hypothesis]:
        """New hypotheses; the first child takes its parent's cache, a further one that of a hypothesis that died.

        That one has the prompt already and often more, so that little is copied.
        """
        live = {id(step.parent) for step in chosen}
        dead = [parent.cache for parent in self._live if id(parent) not in live]
        caches: list[SequenceState] = []
        used: set[int] = set()
        # copies first: a parent's cache must not be handed on before it was copied
        for step in chosen:
            parent = step.parent
            caches.append(self._copy(parent.cache, dead) if id(parent) in used else parent.cache)
            used.add(id(parent))
        for cache in dead:
            cache.seq.close()
        children: list[_Hypothesis] = []
        for step, cache in zip(chosen, caches, strict=True):
            parent = step.parent
            sampler = parent.sampler.fork()
            sampler.accept(step.token)
            scores = (*parent.scores, step.score) if step.score else ()
            children.append(_Hypothesis(cache, sampler, (*parent.tokens, step.token), step.logprob, scores))
        return children

    def _copy(self, cache: SequenceState, dead: list[SequenceState]) -> SequenceState:
        """A copy, in a cache that nobody needs any more where there is one: the one that begins most alike."""
        if not dead:
            return cache.fork()
        nearest = max(dead, key=lambda other: common_prefix(other.tokens, cache.tokens))
        dead.remove(nearest)
        nearest.become(cache)
        return nearest

    def _stopped(self, step: _Step) -> Ending | None:
        """Whether a stop string is complete with this token."""
        if not self._params.stop:
            return None
        text = self._rules.new_text()
        for token in (*step.parent.tokens[-self._tail :], step.token):
            text.push(token)
        return self._rules.by_text(text)

    def _put_aside(
        self,
        tokens: tuple[int, ...],
        logprob: float,
        scores: tuple[TokenScore, ...],
        ending: Ending,
        extra: int,
    ) -> None:
        """Record an answer; ``extra`` is 1 where a token that is not part of it ended it."""
        score = self._score(logprob, len(tokens) + extra)
        self._ended.append(_Ended(score, logprob, tokens, scores[: len(tokens)], ending))

    def _score(self, logprob: float, n: int) -> float:
        return float(logprob / max(1, n) ** self._options.length_penalty)

    def _done(self) -> bool:
        """Whether the answers that are complete are the ones to give."""
        if not self._live:
            return True
        n = self._options.n_beams
        if len(self._ended) < n:
            return False
        if self._options.early_stopping:
            return True
        worst = sorted(ended.score for ended in self._ended)[-n]
        return worst >= max(self._score(h.logprob, len(h.tokens)) for h in self._live)

    def _beam(self, ended: _Ended) -> Beam:
        answer = self._rules.new_text()
        for token in ended.tokens:
            answer.push(token)
        answer.finish()
        clock = self._clock
        timings = Timings(
            prefill_s=clock.prefill_s,
            decode_s=clock.decode_s,
            prefill_tokens=clock.prefill_tokens,
            decode_steps=clock.steps,
            decode_tokens=clock.steps,
        )
        result = GenerationResult(
            text=answer.text,
            token_ids=ended.tokens,
            finish_reason=ended.ending.reason,
            prompt_tokens=len(self._prompt),
            seed=0,
            timings=timings,
            finish_detail=ended.ending.detail,
            matched=ended.ending.matched,
            logprobs=None if self._params.logprobs is None else ended.scores,
        )
        return Beam(result, ended.score, ended.logprob)
