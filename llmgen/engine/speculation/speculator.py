"""Who guesses for a sequence: lookup, a draft model or both; how many tokens, and how well it goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from llmgen.engine.completion import Completion
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.engine.speculation.costs import FIRST_RUNS, StepCosts
from llmgen.engine.speculation.draft import (
    FEWEST,
    MOST_BEHIND,
    MOST_TOKENS,
    DraftModel,
    DraftSequence,
    Question,
    role_of_guesses,
)
from llmgen.engine.speculation.experience import DRAFT, Experience
from llmgen.engine.speculation.lookup import LookupIndex
from llmgen.engine.speculation.pace import Pace
from llmgen.engine.speculation.stats import Idle, SpeculationStats
from llmgen.sampling.rejection import Guess

State = TypeVar("State")


class Speculator:
    """Guesses for one sequence.  It outlives an answer, like the sequence of a conversation."""

    def __init__(self, speculation: Speculation) -> None:
        config = speculation.config
        self._speculation = speculation
        self._index = LookupIndex() if config.lookup else None
        self._draft = DraftSequence(speculation.draft.model) if speculation.draft else None
        self._pace = Pace(config, speculation.costs, speculation.experience)
        self._asked: Question | None = None  # of the draft, the last time
        self._kind = DRAFT
        self._n_sequences = 1
        self._n_judged = 0  # guesses of what was asked last
        self._idle = Counter[Idle]()
        self._guessed = self._accepted = 0
        self._draft_s = 0.0

    def begin(self, tokens: Sequence[int], n_prompt: int) -> None:
        """The sequence has any tokens now, the first ``n_prompt`` of which are computed as prompt."""
        if self._index:
            self._index.begin(tokens)
        if self._draft:
            self._draft.begin(tokens, n_prompt)
            self._asked = None

    def start_answer(self) -> None:
        """Count from here on."""
        self._speculation.costs.start_answer()
        self._idle.clear()
        self._guessed = self._accepted = 0
        self._draft_s = 0.0

    @property
    def rejects(self) -> bool:
        """Whether guesses are judged by rejection sampling."""
        return self._speculation.config.method == "reject"

    def look_up(self, tokens: Sequence[int], most: int, n_sequences: int) -> list[Guess]:
        """What followed the last tokens before, as far as it pays to guess that."""
        if self._index is None:
            return []
        self._index.extend(tokens)
        match, n = self._index.find(), 0
        idle: Idle | None = "no_match"
        if match:
            self._kind, self._n_sequences = match.length.bit_length(), n_sequences
            n = self._pace.choose(most, self._kind, n_sequences)
            idle = self._pace.idle
        if self._draft is None:  # which would be asked next, and has a reason of its own
            self._count_idle(idle)
        return [Guess(token) for token in self._index.continuation(match, n)] if match and n else []

    def question(
        self, completion: Completion, tokens: Sequence[int], most: int, n_sequences: int
    ) -> Question | None:
        """What to ask the draft model, where that pays."""
        draft = self._draft
        if draft is None:
            return None
        if not draft.has_room(tokens):
            self._count_idle("context")
            return None
        self._kind, self._n_sequences = DRAFT, n_sequences
        if self._asked and not self._asked.ready:  # it is still at the prompt
            n = min(self._asked.n, most)
        else:
            n = self._draft_guesses(draft, completion, tokens, most)
        self._asked, self._n_judged = None, 0
        if n:
            sampler = completion.sampler.guessing(independent=self.rejects)
            self._asked = Question(draft, tokens, n, sampler, completion.rules, self._goes_on)
            if self._speculation.among_frequent:
                self._asked.role = role_of_guesses(completion.tokens)
        return self._asked

    def _goes_on(self, confidences: Sequence[float]) -> bool:
        return self._pace.goes_on(confidences, self._n_sequences, self._speculation.costs.guess_s)

    def _count_idle(self, reason: Idle | None) -> None:
        """Why a step has no guesses, if it has none."""
        if reason:
            self._idle[reason] += 1

    def _draft_guesses(
        self, draft: DraftSequence, completion: Completion, tokens: Sequence[int], most: int
    ) -> int:
        """How many tokens the draft shall guess.

        Where it would cost too much to compute all tokens that it has not seen, it goes on with the last ones.
        """
        costs, missing, seen = self._speculation.costs, draft.missing(tokens), None
        token_s = costs.follow_s(completion.prefill_s / max(completion.prefill_tokens, 1))
        if not self._speculation.config.adaptive:
            seen = MOST_BEHIND if draft.has_paused(tokens) else None
        elif draft.behind(tokens) <= FEWEST or missing > costs.affordable_tokens(
            self._n_sequences, costs.guess_s, token_s
        ):
            seen, missing = FEWEST, 0
        behind = draft.behind(tokens)
        if seen:
            behind = min(behind, seen)
        before_s = token_s * missing
        if not missing:  # all but the tokens of one run are computed before that
            before_s = costs.guess_run_s(min(behind, MOST_TOKENS)) - costs.guess_s
            before_s += costs.guess_run_s(behind - MOST_TOKENS) if behind > MOST_TOKENS else 0.0
        n = self._pace.choose(most, DRAFT, self._n_sequences, costs.guess_s, before_s)
        self._count_idle(self._pace.idle)
        if n and seen:
            draft.skip(tokens, behind)
        return n

    def judged(self, right: bool, n_behind: int) -> None:
        """A guess was right, or wrong as were the ``n_behind`` after it."""
        self._guessed += 1 if right else 1 + n_behind
        self._accepted += right
        confidence = None
        if self._kind == DRAFT and self._asked:
            confidence = self._asked.confidences[self._n_judged]
            self._n_judged += 1
        self._pace.judged(self._kind, right, n_behind, self._n_sequences, confidence)

    def count_draft(self, seconds: float) -> None:
        """Account for the time that guesses for this and other sequences took."""
        self._draft_s += seconds

    def stats(self, completion: Completion) -> SpeculationStats:
        """The figures of the answer."""
        return SpeculationStats(
            steps=completion.decode_steps,
            tokens=completion.decode_tokens,
            guessed=self._guessed,
            accepted=self._accepted,
            draft_s=self._draft_s,
            decode_s=completion.decode_s,
            plain_step_s=self._speculation.costs.plain_step_s,
            idle=None if self._guessed or not self._idle else self._idle.most_common(1)[0][0],
        )

    def fork(self) -> Speculator:
        """One for a copy of the sequence."""
        twin = Speculator(self._speculation)
        if twin._draft and self._draft:
            twin._draft.close()
            twin._draft = self._draft.fork()
        return twin

    def close(self) -> None:
        """Give the draft's memory back."""
        if self._draft:
            self._draft.close()


class Speculation:
    """What the sequences of a model share: options, the draft model, what runs cost."""

    def __init__(
        self, config: SpeculativeConfig, draft: DraftModel | None = None, draft_share: float = 0.25
    ) -> None:
        """``draft_share``: how large the draft is beside the model, from which its first costs are estimated."""
        self.config = config
        self.draft = draft
        self.draft_share = draft_share
        self.costs = StepCosts(draft_share if draft else 0.0)
        self.experience = Experience()
        self._turn = 0

    @property
    def among_frequent(self) -> bool:
        """Whether the draft may choose among the most frequent tokens only, where that is enough."""
        return self.config.adaptive and self.draft is not None and not self.draft.all_tokens

    def renewed(self) -> Speculation:
        """The same options and draft, with nothing known yet of what guesses cost and how often they are right."""
        return Speculation(self.config, self.draft, self.draft_share)

    def warm_up(self) -> None:
        """Have the draft compute a few tokens, and see what that costs: whether it can begin depends on it."""
        if self.draft is None or not self.draft.try_run(1):
            return
        for _ in range(FIRST_RUNS):  # the first ones are slow
            begun = time.perf_counter()
            self.draft.try_run(1)
            tried = time.perf_counter()
            n = self.draft.try_run(MOST_TOKENS)
            if n:
                self.costs.tried(tried - begun, n, time.perf_counter() - tried)

    def speculator(self) -> Speculator:
        """What guesses for a new sequence."""
        return Speculator(self)

    def in_turn(self, states: Sequence[State]) -> list[State]:
        """The answers, beginning with another one each time."""
        self._turn += 1
        first = self._turn % len(states)
        return [*states[first:], *states[:first]]

    def ask_draft(self, questions: Sequence[Question], run: Callable[..., Any]) -> float:
        """Have the draft model answer; returns how many seconds that took."""
        assert self.draft is not None
        begun = time.perf_counter()
        for question in questions:
            self._prepare(question, run)
        prepared = time.perf_counter()
        ready = [question for question in questions if question.ready]
        sizes = self.draft.answer(ready, run)
        ended = time.perf_counter()
        if sizes:
            self.costs.guessed(sizes, ended - prepared, len(ready))
        return ended - begun

    def _prepare(self, question: Question, run: Callable[..., Any]) -> None:
        assert self.draft is not None
        begun = time.perf_counter()
        computed = self.draft.prepare(question, run)
        if computed:
            self.costs.followed(computed, time.perf_counter() - begun)
