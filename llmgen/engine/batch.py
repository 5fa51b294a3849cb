"""Many answers at once: one forward pass gives each of them its next token.

A generated token's logits do not depend on what else is in the pass, and every
sequence has its own sampler, so an answer is the same as it would be alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.cached import CachedTokens, OnPrompt, common_prefix, prefill_together
from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.prompt import check_prompt, prompt_ids
from llmgen.engine.requests import TURN, Answer, Request, Slot
from llmgen.engine.stopping import Cancel, Interruptible, keep_result
from llmgen.engine.stream import make_room
from llmgen.engine.writer import Writer
from llmgen.errors import Interrupted, LLMGenError, UsageError
from llmgen.model.runs import Part
from llmgen.sampling.params import SamplingParams, checked_params

_log = logging.getLogger(__name__)

MAX_SLOTS = 8
"""Sequences in one forward pass: what the model's matrix-vector kernels take."""

_WORTH_SHARING = 16

_TOGETHER = 128
"""Tokens of prompts that are computed in one pass; longer ones gain nothing by company."""


class Batch:
    """Runs requests in up to ``slots`` sequences; a slot that is done takes the next request.

    ``on_event`` is called with each request and event, in the order they happen;
    ``on_prompt`` with a request, how many tokens of its prompt are computed, and how many
    there are, unless short prompts are computed together.
    The request after next is not looked at, so requests may come from a generator.
    """

    def __init__(
        self,
        model: ModelLike,
        tokenizer: TokenizerLike | None = None,
        *,
        slots: int = MAX_SLOTS,
        cancel: Cancel | None = None,
        on_event: Callable[[Request, GenerationEvent], object] | None = None,
        on_prompt: Callable[[Request, int, int], object] | None = None,
        params: SamplingParams | None = None,
    ) -> None:
        """``params`` are those of requests that bring none."""
        if not 1 <= slots <= MAX_SLOTS:
            raise UsageError(f"slots must be from 1 to {MAX_SLOTS}, not {slots}")
        self._model = model
        self._tokenizer = tokenizer
        self._params = checked_params(params)
        self._n_slots = slots
        self._cancel = cancel
        self._on_event = on_event
        self._on_prompt = on_prompt
        self._trunk: CachedTokens | None = None  # a prompt that the next one begins like
        self._growing: Slot | None = None  # whose prompt will be the trunk when it is computed
        self._calls = Interruptible(model, cancel, None)

    def run(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answers in the order they are done.

        The cancel token ends those at work as ``interrupted``, and then the
        iteration; requests that had not begun have no answer.  So does an error
        that is no request's own (out of memory), which is raised then.  Ctrl-C
        raises KeyboardInterrupt, whose ``result`` is a list of the answers that
        have not been given: those at work, cut short.
        """
        waiting = _Peekable(requests, lambda r: prompt_ids(r.prompt, self._model, self._tokenizer))
        active: list[Slot] = []
        done: list[Answer] = []
        self._calls, self._growing = Interruptible(self._model, self._cancel, None), None
        self._calls.start()
        try:
            yield from self._answers(active, waiting, done)
        except KeyboardInterrupt as error:
            self._collect(active, done, Ending("interrupted", "keyboard"))
            keep_result(error, done)
            raise
        finally:
            self._calls.finish()
            for slot in active:
                self._release(slot)
            self._drop_trunk()

    def _answers(self, active: list[Slot], waiting: _Peekable, done: list[Answer]) -> Iterator[Answer]:
        """The answers; while one is given out, ``done`` has those that are to follow it."""
        interrupted: Ending | None = None
        failure: Exception | None = None
        while interrupted is None and (active or waiting.has_next()):
            interrupted = self._calls.due()
            try:
                if interrupted is None:
                    self._begin(active, waiting, done)
                    self._step(active)
            except Interrupted:
                interrupted = self._calls.due() or Ending("interrupted", "cancel")
            except (MemoryError, OSError) as error:
                interrupted, failure = Ending("interrupted", "error"), error
            self._collect(active, done, interrupted)
            while done:
                yield done.pop(0)
        if failure is not None:
            raise failure

    def _begin(self, active: list[Slot], waiting: _Peekable, refused: list[Answer]) -> None:
        """Start waiting requests and compute their prompts, as far as answers at work can wait for that."""
        budget = TURN
        while True:
            self._fill(active, waiting, refused)
            begun = [slot for slot in active if slot.waiting]
            if not begun or (budget <= 0 and any(slot.writing for slot in active)):
                return
            budget -= self._prompts(begun)
            if (grown := self._growing) and not grown.waiting:
                self._growing = None
                if not grown.cache.n_missing:
                    self._trunk = grown.cache.fork()

    def _fill(self, active: list[Slot], waiting: _Peekable, refused: list[Answer]) -> None:
        """Give free slots to waiting requests; those that begin like one at work wait for its prompt."""
        while len(active) < self._n_slots and not self._growing and waiting.has_next():
            request, ids = waiting.take()
            try:
                if isinstance(ids, LLMGenError):
                    raise ids
                slot = self._open(request, ids)
            except LLMGenError as error:
                refused.append(Answer(request, error=error))
                continue
            active.append(slot)
            _log.debug("request %s takes a slot, %d of %d at work", request.key, len(active), self._n_slots)
            slot.begin(ids)
            if self._trunk is None and waiting.begins_like(ids):
                self._growing = slot

    def _prompts(self, begun: list[Slot]) -> int:
        """Compute the first prompt, or short ones together, and choose their first tokens; how many it computed."""
        group = self._group(begun)
        before = _count(group)
        for slot in group:
            slot.start()
        rows = self._together(group) if len(group) > 1 else {}
        for slot in rows or group[:1]:
            event = None
            with slot.own_trouble():
                logits = rows[slot] if rows else slot.prefill(self._watching(slot))
                slot.waiting = slot.cache.n_missing > 0
                event = None if logits is None else slot.step(logits)
            self._report(slot, event)  # an error in there is the caller's, not this request's
        return before - _count(group)

    def _watching(self, slot: Slot) -> OnPrompt | None:
        """What a slot's prompt is reported to."""
        watch = self._on_prompt
        return None if watch is None else lambda done, total: watch(slot.request, done, total)

    def _group(self, begun: list[Slot]) -> list[Slot]:
        """The first one, and those behind it that go with it in one pass; who has a timeout goes alone, and can end."""
        group = begun[:1]
        for slot in begun[1:]:
            fits = _count([*group, slot]) <= min(_TOGETHER, self._model.max_prompt_tokens)
            if not fits or not all(s.open and s.writer.params.timeout is None for s in (begun[0], slot)):
                break
            group.append(slot)
        return group

    def _together(self, slots: list[Slot]) -> dict[Slot, NDArray[np.float32]]:
        """The logits of short prompts, float32 [n_vocab] each, in one pass; nothing where that fails."""
        started = time.perf_counter()
        try:
            rows = prefill_together([slot.cache for slot in slots], self._calls)
        except Interrupted:
            raise
        except LLMGenError as error:
            _log.debug(
                "%d prompts in one pass: %s; each alone will tell whose trouble it is", len(slots), error
            )
            return {}
        for slot in slots:
            slot.count_prefill(started)
        return dict(zip(slots, rows, strict=True))

    def _open(self, request: Request, ids: list[int]) -> Slot:
        n_vocab, n_ctx = int(self._model.config.vocab_size), int(self._model.n_ctx)
        params = checked_params(request.params, self._params)
        writer = Writer(self._tokenizer, params, ids, n_vocab, n_ctx)
        calls = Interruptible(self._model, self._cancel, params.timeout)
        if self._trunk and common_prefix(self._trunk.tokens, ids) >= _WORTH_SHARING:
            return Slot(request, self._trunk.fork(), writer, calls)
        self._drop_trunk()
        return Slot(request, CachedTokens(self._model, self._model.new_sequence()), writer, calls)

    def _step(self, active: list[Slot]) -> None:
        """One forward pass for all slots that go on."""
        for slot in active:
            if slot.writing:
                slot.cache.tokens.append(slot.token)
                with slot.own_trouble():
                    slot.writer.ending = slot.calls.due() or make_room(slot.cache, slot.writer, slot.calls)
        slots = [slot for slot in active if slot.writing]
        if not slots:
            return
        events: list[tuple[Slot, GenerationEvent | None]] = []
        try:
            self._calls.call(self._advance, slots, events)
        finally:
            for slot, event in events:
                self._report(slot, event)

    def _advance(self, slots: list[Slot], events: list[tuple[Slot, GenerationEvent | None]]) -> None:
        """Every slot's next token, and its event; chosen in this model's turn, so that the logits need no copy."""
        started = time.perf_counter()

        def choose(rows: NDArray[np.float32]) -> None:
            elapsed = time.perf_counter() - started
            for slot, row in zip(slots, rows, strict=True):
                slot.writer.count_decode(elapsed)
                with slot.own_trouble():
                    events.append((slot, slot.step(row)))

        try:
            self._model.forward([Part(slot.cache.seq, [slot.token]) for slot in slots], "generated", choose)
        except Interrupted:
            raise
        except LLMGenError as error:
            if len(slots) == 1:
                slots[0].fail(error)
            else:
                for slot in slots:  # alone, the one at fault fails by itself
                    self._advance([slot], events)

    def _collect(self, active: list[Slot], done: list[Answer], interrupted: Ending | None) -> None:
        """Take out the slots that are done, or all of them after an interruption; their answers go to ``done``."""
        for slot in list(active):
            ending = interrupted if slot.waiting else slot.writer.ending or interrupted
            if ending:
                active.remove(slot)
                self._release(slot)
                if ending.reason != "interrupted":
                    with slot.own_trouble():
                        self._model.check_file()
                last = slot.writer.end(ending if slot.error is None else Ending("interrupted", "error"))
                done.append(Answer(slot.request, last.result, slot.error))
                self._report(slot, last)

    def _release(self, slot: Slot) -> None:
        slot.calls.finish()
        slot.cache.seq.close()

    def _drop_trunk(self) -> None:
        if self._trunk:
            self._trunk.seq.close()
            self._trunk = None

    def _report(self, slot: Slot, event: GenerationEvent | None) -> None:
        if event and self._on_event:
            self._on_event(slot.request, event)


def _count(slots: list[Slot]) -> int:
    """Tokens to compute."""
    return sum(slot.cache.n_missing for slot in slots)


_Waiting = tuple[Request, list[int] | LLMGenError]
"""A request, and its prompt's token ids or why it is refused."""


class _Peekable:
    """An iterator of requests whose next one can be looked at."""

    def __init__(self, requests: Iterable[Request], read: Callable[[Request], list[int]]) -> None:
        """``read`` gives a request's token ids, or raises LLMGenError."""
        self._source = iter(requests)
        self._read = read
        self._next: _Waiting | None = None

    def has_next(self) -> bool:
        """Whether there is one."""
        if self._next is None and (request := next(self._source, None)) is not None:
            try:
                self._next = request, self._read(request)
            except LLMGenError as error:
                self._next = request, error
        return self._next is not None

    def begins_like(self, ids: list[int]) -> bool:
        """Whether the next prompt begins like this one, as far as that saves anything."""
        if not self.has_next():
            return False
        following = cast(_Waiting, self._next)[1]
        return isinstance(following, list) and common_prefix(ids, following) >= _WORTH_SHARING

    def take(self) -> _Waiting:
        """Remove and return it."""
        assert self.has_next()
        waiting, self._next = cast(_Waiting, self._next), None
        return waiting


def generate_all(
    model: ModelLike,
    tokenizer: TokenizerLike | None,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    cancel: Cancel | None = None,
) -> list[GenerationResult]:
    """The results of some prompts, each with its own options, in the order given.

    All prompts are checked before the first is computed.  An interruption gives
    those that had not begun an empty result; that of Ctrl-C raises KeyboardInterrupt,
    with the results as its ``result``.  An error ends everything.
    """
    if len(params) != len(prompts):
        raise UsageError(f"{len(prompts)} prompts need as many SamplingParams, not {len(params)}")
    checked = [check_prompt(ids, model) for ids in prompts]
    requests = [Request(ids, p, i) for i, (ids, p) in enumerate(zip(checked, params, strict=True))]
    results: dict[int, GenerationResult] = {}
    try:
        for answer in Batch(model, tokenizer, cancel=cancel).run(requests):
            if answer.error:
                raise answer.error
            results[answer.request.key] = cast(GenerationResult, answer.result)
    except KeyboardInterrupt as error:
        cut: list[Answer] = getattr(error, "result", [])
        results.update({answer.request.key: answer.result for answer in cut if answer.result})
        keep_result(error, [results.get(request.key) or _not_begun(request) for request in requests])
        raise
    return [results.get(request.key) or _not_begun(request) for request in requests]


def _not_begun(request: Request) -> GenerationResult:
    return GenerationResult(
        text="",
        token_ids=(),
        finish_reason="interrupted",
        finish_detail="not_begun",
        prompt_tokens=len(request.prompt),
        seed=(request.params and request.params.seed) or 0,
    )
