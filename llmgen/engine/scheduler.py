"""The one loop that computes answers: requests go in, and every step advances all of them.

A scheduler is told what to do (:meth:`~Scheduler.submit`, :meth:`~Scheduler.cancel`) and asked
to :meth:`~Scheduler.step`; it never waits for anything.  A stream is a scheduler with one request, a
batch fills one from an iterable, and a server can do the same from its connections.

A token's logits do not depend on what else is in the run, and every request has its own
sampler, so an answer is the same as it would be alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from llmgen.arguments import checked_function, whole_number
from llmgen.engine.completion import Completion
from llmgen.engine.events import Ending, GenerationEvent
from llmgen.engine.guessing import guess
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.prompt import check_writes, prompt_ids
from llmgen.engine.request_state import OwnError, RequestState
from llmgen.engine.requests import Answer, Output, Queued, Request, not_begun
from llmgen.engine.sequence_state import SequenceState, prefill_together
from llmgen.engine.shared_prefix import SharedPrefix
from llmgen.engine.speculation.speculator import Speculation
from llmgen.engine.stopping import Cancel, Watchdog
from llmgen.errors import Interrupted, LLMGenError, UsageError, kind_of
from llmgen.model.runs import MAX_PARTS
from llmgen.sampling.params import SamplingParams, checked_params

_log = logging.getLogger(__name__)

MAX_SLOTS = MAX_PARTS
"""Answers that are computed together: as many as one run takes."""

_TOGETHER = 128
"""The most tokens of several prompts in one run; longer prompts gain nothing from sharing one."""

CANCELLED = Ending("interrupted", "cancel")


class Scheduler:
    """Works on up to ``slots`` requests at a time; the others wait in the order of their arrival.

    :meth:`submit` and :meth:`cancel` may be called from any thread, the rest from one at a time.
    """

    def __init__(
        self,
        model: ModelLike,
        tokenizer: TokenizerLike | None = None,
        *,
        slots: int = MAX_SLOTS,
        cancel: Cancel | None = None,
        params: SamplingParams | None = None,
        on_prompt: Callable[[Request, int, int], object] | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """``cancel`` ends all requests; ``params`` apply to those that are given none; ``speculation`` guesses tokens.

        ``on_prompt`` is called with a request, how many tokens of its prompt are computed, and how
        many there are, unless short prompts are computed together.
        """
        self._slots = whole_number("slots (--slots)", slots, 1, MAX_SLOTS)
        self._on_prompt = checked_function("on_prompt", on_prompt, "a request and two numbers of tokens")
        check_writes(model)
        self.stopped = False
        """Whether all requests have been ended, by the cancel token or because the model was closed."""
        self._model = model
        self._tokenizer = tokenizer
        self._params = checked_params(params)
        self._speculation = speculation
        self._queue: deque[Queued] = deque()
        self._active: list[RequestState] = []
        self._outputs: list[Output] = []
        self._prefix = SharedPrefix()
        self._watchdog = Watchdog(model, cancel)
        self._guard = threading.RLock()  # over the queue, and over who is active
        self._turn = int(model.max_prompt_tokens)  # prompt tokens between two tokens of an answer
        self._budget = self._turn  # how many of them are left

    # ---- requests -------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request.  One that cannot be used gets an answer, too: its error."""
        if not isinstance(request, Request):
            raise UsageError(f"a request must be a Request, not {kind_of(request)}: write Request(prompt)")
        try:
            queued = Queued(request, prompt_ids(request.prompt, self._model, self._tokenizer))
        except LLMGenError as error:
            queued = Queued(request, [], error)
        with self._guard:
            self._queue.append(queued)

    def start(self, state: RequestState) -> None:
        """Work on a request whose sequence and answer are the caller's, from the next step on."""
        with self._guard:
            self._active.append(state)

    def cancel(self, request: Request, ending: Ending = CANCELLED) -> None:
        """End a request (this object, not an equal one) at the next step, with the answer so far."""
        with self._guard:
            for queued in [queued for queued in self._queue if queued.request is request]:
                self._queue.remove(queued)
                result = not_begun(request, len(queued.ids), ending)
                self._outputs.append(Output(request, answer=Answer(request, result)))
            for state in self._active:
                if state.request is request:
                    self._watchdog.end(state.limits, ending)

    # ---- steps ----------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._queue or self._active or self._outputs)

    @property
    def n_queued(self) -> int:
        """Requests that have not begun."""
        return len(self._queue)

    @property
    def n_free(self) -> int:
        """Requests that could begin at once."""
        return max(0, self._slots - len(self._active))

    def step(self) -> list[Output]:
        """Compute some prompt tokens, then the next token of every answer; returns what that produced.

        Tokens that the last run computed ahead are given out first, one a step.  If no answer had
        begun before, the step ends after the prompts, so that a single request gets one token a step.  An
        error that no request has caused (out of memory, an error in a callback) is raised;
        nothing is lost, and :meth:`abort` returns the answers so far.
        """
        self._end_due()
        self._admit()
        self._end_or_shift_full()
        try:
            if not self._choose_ahead():
                self._compute()
        except Interrupted:
            if not self._end_due():  # not one of ours: the model is being closed, or was stopped as a whole
                self._end_all(CANCELLED)
        self._collect()
        return self._take_outputs()

    def _compute(self) -> None:
        generates = any(state.generating for state in self._active)
        self._prefill()
        if generates:
            self._generate([state for state in self._active if state.generating])

    def abort(self, ending: Ending) -> list[Output]:
        """End all running requests and forget the queue; returns the remaining outputs."""
        self._end_all(ending)
        self._collect()
        self.close()
        return self._take_outputs()

    def close(self) -> None:
        """Free everything; without a call of :meth:`abort` before, running requests get no answer."""
        self._watchdog.close()
        with self._guard:
            self._queue.clear()
            for state in self._active:
                state.release()
            self._active.clear()
        self._prefix.close()

    # ---- endings --------------------------------------------------------------------

    def _end_due(self) -> bool:
        """End the requests that a timeout or a cancellation has ended; returns whether there were any."""
        found = False
        for state in self._active:
            due = self._watchdog.due(state.limits) if state.open else None
            if due is not None:
                state.end(due)
                found = True
        if self._watchdog.cancelled:
            self.stopped = True
        return found

    def _end_all(self, ending: Ending) -> None:
        self.stopped = True
        for state in self._active:
            state.end(ending)

    def _end_or_shift_full(self) -> None:
        """If the context is full, end the answer or drop its oldest tokens, as its request says."""
        for state in self._active:
            n_cached = state.sequence.length
            if not state.generating or n_cached < self._model.n_ctx:
                continue
            state.completion.ending = state.completion.rules.by_context(n_cached, self._model.n_ctx)
            if state.open:
                with OwnError(state), self._model.lock:
                    state.shift()

    def _collect(self) -> None:
        """Remove the requests that have ended; their last events become outputs."""
        for state in [state for state in self._active if not state.open]:
            with self._guard:
                self._active.remove(state)
            ending = state.completion.ending
            # an error may come from a file that was written to, which says more
            if ending and (ending.reason != "interrupted" or state.error is not None):
                with OwnError(state):
                    self._model.check_file()
            with self._model.lock:
                state.release()
            last = state.last_event()
            answer = Answer(state.request, last.result, state.error)
            self._outputs.append(Output(state.request, last, answer))

    def _emit(self, state: RequestState, event: GenerationEvent | None) -> None:
        if event:
            self._outputs.append(Output(state.request, event))

    def _take_outputs(self) -> list[Output]:
        with self._guard:
            outputs, self._outputs = self._outputs, []
        return outputs

    # ---- beginnings -----------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting requests; one that begins like a running request waits for that one's prompt."""
        self._prefix.update()  # the request that the others wait for may have ended
        with self._guard:
            while self._queue and self.n_free and not self._prefix.pending and not self.stopped:
                queued = self._queue.popleft()
                try:
                    state = self._open(queued)
                except LLMGenError as error:
                    self._outputs.append(Output(queued.request, answer=Answer(queued.request, error=error)))
                    continue
                self._active.append(state)
                _log.debug(
                    "request %s begins, %d of %d at work",
                    *(queued.request.key, len(self._active), self._slots),
                )
                if self._queue:
                    self._prefix.consider(state, self._queue[0].ids)
        for state in self._active:
            if state.open and not state.begun:
                with OwnError(state), self._model.lock:  # somebody may be copying the sequence
                    state.begin()

    def _open(self, queued: Queued) -> RequestState:
        if queued.error is not None:
            raise queued.error
        params = checked_params(queued.request.params, self._params)
        completion = Completion(
            self._tokenizer,
            params,
            queued.ids,
            n_vocab=int(self._model.config.vocab_size),
            n_ctx=int(self._model.n_ctx),
        )
        sequence = self._prefix.fork(queued.ids)
        if sequence is None:
            sequence = SequenceState(self._model, self._model.new_sequence())
        speculator = self._speculation.speculator() if self._speculation else None
        return RequestState(queued.request, queued.ids, completion, sequence, speculator=speculator)

    # ---- prompts --------------------------------------------------------------------

    def _prefill(self) -> None:
        """Compute prompts for as long as running answers can wait; at least one piece if there are none."""
        n_computed = 0
        while waiting := [state for state in self._active if state.prefilling]:
            must_wait = n_computed or any(state.generating for state in self._active)
            if self._budget <= 0 and must_wait:
                return
            n = self._prefill_some(waiting)
            n_computed += n
            self._budget -= n
            self._prefix.update()  # before that request can end, and its sequence is closed
            self._end_due()
            self._admit()

    def _prefill_some(self, waiting: list[RequestState]) -> int:
        """Compute a piece of the first prompt, or several short prompts in one run; returns the number of tokens."""
        group = self._group(waiting)
        before = _n_cached(group)
        for state in group:
            self._watchdog.start(state.limits)
            state.completion.start()
        if len(group) == 1 or not self._prefill_together(group):
            self._prefill_piece(group[0])
        return _n_cached(group) - before

    def _group(self, waiting: list[RequestState]) -> list[RequestState]:
        """The first request, and those after it that can share its run."""
        group = waiting[:1]
        most = min(_TOGETHER, self._model.max_prompt_tokens)
        for state in waiting[1:]:
            n_tokens = sum(other.sequence.n_missing for other in (*group, state))
            if n_tokens > most or not (waiting[0].goes_together and state.goes_together):
                break
            group.append(state)
        return group

    def _prefill_together(self, group: list[RequestState]) -> bool:
        """Compute short prompts in one run, and choose their first tokens; False if that fails."""
        started = time.perf_counter()
        try:
            rows = self._watchdog.call(
                [state.limits for state in group],
                prefill_together,
                [state.sequence for state in group],
            )
        except Interrupted:
            raise
        except LLMGenError as error:
            _log.debug("%d prompts in one run: %s; computing them one by one", len(group), error)
            return False
        for state, row in zip(group, rows, strict=True):
            state.count_prefill(started)
            self._finish_prompt(state, row)
        return True

    def _prefill_piece(self, state: RequestState) -> None:
        """Compute the next piece of one prompt, and choose the first token if that completes it."""
        if not state.reported:
            self._report(state)
        started, row = time.perf_counter(), None
        try:
            with OwnError(state):
                row = self._watchdog.call([state.limits], state.prefill)
        finally:
            state.count_prefill(started)
        if not state.open or state.prompt_done:
            return
        self._report(state)
        if not state.sequence.n_missing:
            self._finish_prompt(state, row)

    def _finish_prompt(self, state: RequestState, row: NDArray[np.float32] | None) -> None:
        with OwnError(state):
            self._emit(state, state.finish_prompt(row))

    def _report(self, state: RequestState) -> None:
        state.reported = True
        if self._on_prompt:
            self._on_prompt(state.request, state.sequence.cached, len(state.ids))

    # ---- generated tokens -----------------------------------------------------------

    def _generate(self, states: list[RequestState]) -> None:
        """One run for all of them, and the next token of each, chosen while the logits are in place."""
        self._budget = self._turn
        if self._speculation and states:
            guess(self._speculation, states, self._watchdog)
        self._run([state for state in states if state.open])

    def _run(self, states: list[RequestState]) -> None:
        if not states:
            return
        started = time.perf_counter()
        parts = [state.part() for state in states]

        def choose(rows: NDArray[np.float32]) -> None:
            elapsed = time.perf_counter() - started
            if self._speculation:
                self._speculation.costs.ran(len(rows), len(states), elapsed)
            for state, part in zip(states, parts, strict=True):
                own, rows = rows[: part.n_logits], rows[part.n_logits :]
                state.completion.count_decode(elapsed)
                with OwnError(state):
                    self._emit(state, state.take(own))

        try:
            self._watchdog.call(
                [state.limits for state in states], self._model.forward, parts, "generated", choose
            )
        except Interrupted:
            raise
        except LLMGenError as error:
            if len(states) == 1:
                states[0].fail(error)
                return
            for state in states:  # one by one, only the one at fault fails
                if state.generating:
                    self._run([state])

    def _choose_ahead(self) -> bool:
        """Choose the next token of answers whose logits are there already; returns whether there are any."""
        ahead = [state for state in self._active if state.ahead]
        for state in ahead:
            with OwnError(state), self._model.lock:
                self._emit(state, state.choose_ahead())
        return bool(ahead)


def _n_cached(states: list[RequestState]) -> int:
    return sum(state.sequence.cached for state in states)
