"""Many answers at once: a scheduler that is filled from an iterable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from llmgen.arguments import checked_function
from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.prompt import check_prompt
from llmgen.engine.requests import Answer, Output, Request, not_begun
from llmgen.engine.scheduler import MAX_SLOTS, Scheduler
from llmgen.engine.speculation.speculator import Speculation
from llmgen.engine.stopping import Cancel, attach_result
from llmgen.errors import UsageError, kind_of
from llmgen.sampling.params import SamplingParams

_IDLE_S = 0.01  # between two looks at a source that has no request yet


class Batch:
    """Runs requests in up to ``slots`` sequences; a slot that is free takes the next request.

    ``on_event`` is called with each request and event, in the order they happen;
    ``on_prompt`` with a request, how many tokens of its prompt are computed, and how many
    there are, unless short prompts are computed together.
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
        speculation: Speculation | None = None,
    ) -> None:
        """``params`` apply to requests that are given none; ``speculation`` guesses tokens."""
        self._on_event = checked_function("on_event", on_event, "a request and an event")

        def new_scheduler() -> Scheduler:
            return Scheduler(
                model,
                tokenizer,
                slots=slots,
                cancel=cancel,
                params=params,
                on_prompt=on_prompt,
                speculation=speculation,
            )

        new_scheduler()  # raises where an option is wrong
        self._new_scheduler = new_scheduler

    def run(self, requests: Iterable[Request | None]) -> Iterator[Answer]:
        """Answers in the order they are done.

        Requests may come from a generator, which is asked for as many as there are free slots
        and one more.  It runs in this thread: one that would have to wait for its next request
        should yield None, so that the answers at work go on meanwhile.

        The cancel token ends those at work as ``interrupted``, and then the
        iteration; requests that had not begun have no answer.  So does an error
        that is no request's own (out of memory), which is raised then.  Ctrl-C
        raises KeyboardInterrupt, whose ``result`` is a list of the answers that
        have not been given: those at work, cut short.
        """
        if not isinstance(requests, Iterable):
            raise UsageError(f"requests must be a list or a generator of Requests, not {kind_of(requests)}")
        return self._answers(requests)

    def _answers(self, requests: Iterable[Request | None]) -> Iterator[Answer]:
        scheduler, source, done = self._new_scheduler(), _Source(requests), list[Answer]()
        failure: Exception | None = None
        try:
            while failure is None and not scheduler.stopped:
                try:
                    source.fill(scheduler)
                    if not scheduler.has_work:
                        if source.exhausted:
                            return
                        time.sleep(_IDLE_S)
                    self._take(scheduler.step(), done)
                except (MemoryError, OSError) as error:
                    failure = error
                    self._take(scheduler.abort(Ending("interrupted", "error")), done)
                while done:
                    yield done.pop(0)
            if failure is not None:
                raise failure
        except KeyboardInterrupt as error:
            self._take(scheduler.abort(Ending("interrupted", "keyboard")), done)
            attach_result(error, done)
            raise
        finally:
            scheduler.close()

    def _take(self, outputs: list[Output], done: list[Answer]) -> None:
        """Keep the answers first, then report the events, since a callback may raise."""
        done.extend(output.answer for output in outputs if output.answer)
        for output in outputs:
            if output.event and self._on_event:
                self._on_event(output.request, output.event)


class _Source:
    """Where the requests of a batch come from."""

    def __init__(self, requests: Iterable[Request | None]) -> None:
        self.exhausted = False
        self._requests = iter(requests)

    def fill(self, scheduler: Scheduler) -> None:
        """Submit as many as can begin, and one more, to see whether it begins like them; stop where none is there."""
        while not self.exhausted and scheduler.n_queued <= scheduler.n_free:
            try:
                request = next(self._requests)
            except StopIteration:
                self.exhausted = True
                return
            if request is None:
                return
            scheduler.submit(request)


def generate_all(
    model: ModelLike,
    tokenizer: TokenizerLike | None,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    cancel: Cancel | None = None,
    speculation: Speculation | None = None,
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

    def all_results() -> list[GenerationResult]:
        return [results.get(request.key) or not_begun(request, len(request.prompt)) for request in requests]

    try:
        for answer in Batch(model, tokenizer, cancel=cancel, speculation=speculation).run(requests):
            if answer.error:
                raise answer.error
            results[answer.request.key] = cast(GenerationResult, answer.result)
    except KeyboardInterrupt as error:
        cut: list[Answer] = getattr(error, "result", [])
        results.update({answer.request.key: answer.result for answer in cut if answer.result})
        attach_result(error, all_results())
        raise
    return all_results()
