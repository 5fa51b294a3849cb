"""What a scheduler is asked for, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.prompt import Prompt
from llmgen.errors import LLMGenError
from llmgen.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt: a text, completed as it stands, or token ids.

    ``params`` None stands for the scheduler's; ``key`` is the caller's, to know the answer by.
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


@dataclass(frozen=True, slots=True)
class Output:
    """One thing that a step of the scheduler produced for a request: an event, an answer, or the last event with it."""

    request: Request
    event: GenerationEvent | None = None
    answer: Answer | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """A request that has not begun: its prompt's token ids, or why it is refused."""

    request: Request
    ids: list[int]
    error: LLMGenError | None = None


def not_begun(request: Request, prompt_tokens: int, ending: Ending | None = None) -> GenerationResult:
    """The empty result of a request that was ended before its turn came."""
    ending = ending or Ending("interrupted", "not_begun")
    return GenerationResult(
        text="",
        token_ids=(),
        finish_reason=ending.reason,
        finish_detail=ending.detail,
        prompt_tokens=prompt_tokens,
        seed=(request.params and request.params.seed) or 0,
    )
