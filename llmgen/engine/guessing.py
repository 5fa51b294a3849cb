"""Guesses for the next run: the tokens that may follow the one each answer has chosen last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgen.engine.request_state import RequestState
from llmgen.engine.speculation.config import MOST_GUESSES
from llmgen.engine.speculation.draft import Question
from llmgen.engine.speculation.speculator import Speculation
from llmgen.engine.stopping import Watchdog
from llmgen.errors import Interrupted, LLMGenError


def guess(speculation: Speculation, states: Sequence[RequestState], watchdog: Watchdog) -> None:
    """Give each of these requests its guesses for the next run.

    All share the tokens that a run takes.  Who comes first changes from run to run; what one leaves, the next may take.
    """
    left = MOST_GUESSES - len(states)
    extra = speculation.config.extra_token
    questions: list[tuple[RequestState, Question]] = []
    for i, state in enumerate(speculation.in_turn(states)):
        state.guesses = []
        most = state.most_guesses(-(-left // (len(states) - i)))
        if state.speculator is None or most < 1:
            continue
        most += not extra  # the last one is only compared
        state.guesses = state.speculator.look_up(state.sequence.tokens, most, len(states))
        n = len(state.guesses)
        if not n:
            question = state.speculator.question(state.completion, state.sequence.tokens, most, len(states))
            if question:
                questions.append((state, question))
                n = question.n
        left -= max(0, n - (not extra))
    if questions:
        _ask(speculation, questions, watchdog)
    if not extra:
        for state in states:
            del state.guesses[-1:]


def _ask(
    speculation: Speculation, questions: Sequence[tuple[RequestState, Question]], watchdog: Watchdog
) -> None:
    assert speculation.draft is not None
    limits, model = [state.limits for state, _ in questions], speculation.draft.model

    def run(work: Any, *args: Any) -> Any:
        return watchdog.call(limits, work, *args, model=model)

    try:
        seconds = speculation.ask_draft([question for _, question in questions], run)
    except Interrupted:
        raise
    except LLMGenError as error:  # the text does not need the draft, but who asked for it should know
        for state, _ in questions:
            state.fail(error)
        return
    for state, question in questions:
        state.guesses = question.guesses
        state.completion.decode_s += seconds
        if state.speculator:
            state.speculator.count_draft(seconds)
