"""What a generation reports: an event for each token, and one result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llmgen.engine.speculation.stats import SpeculationStats
from llmgen.sampling.scores import TokenLogprob, TokenScore

FinishReason = Literal["stop", "length", "timeout", "interrupted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a generation ended.

    ``detail`` is one of eog, stop_token, stop_string, callback (reason
    ``stop``), max_tokens, context_full (``length``), timeout (``timeout``),
    keyboard, cancel, closed, superseded, error, not_begun (``interrupted``).  ``matched`` is the token
    id or the stop string that ended it, where one did.
    """

    reason: FinishReason
    detail: str
    matched: int | str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds and tokens.

    The time that a consumer of events spends between two tokens counts nowhere.
    ``prefill_tokens`` is what was computed of the prompt, ``cached_tokens`` what
    was found in the cache; ``decode_tokens`` is one less than the tokens
    generated, because the first token's logits come from the prompt.  ``decode_steps``
    are the runs that gave them: as many, unless tokens are guessed.
    In a batch, ``decode_s`` is the time of the steps this sequence took part in.
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    ttft_s: float | None = None
    sampling_s: float = 0.0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens computed per second; None if none were computed."""
        return self.prefill_tokens / self.prefill_s if self.prefill_tokens and self.prefill_s else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second after the first one; None if there was only one."""
        return self.decode_tokens / self.decode_s if self.decode_tokens and self.decode_s else None

    def as_dict(self) -> dict[str, float | int | None]:
        """The fields and the two rates, ready for JSON."""
        return {
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "ttft_s": self.ttft_s,
            "sampling_s": self.sampling_s,
            "prefill_tokens": self.prefill_tokens,
            "cached_tokens": self.cached_tokens,
            "decode_steps": self.decode_steps,
            "decode_tokens": self.decode_tokens,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
        }


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished generation.

    ``token_ids`` holds every generated token except the one that ended it
    (an end-of-generation or stop token); where a stop string ended it, the
    tokens that spelled it are there, though ``text`` leaves them out.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int
    timings: Timings = field(default_factory=Timings)
    finish_detail: str = ""
    matched: int | str | None = None
    logprobs: tuple[TokenScore, ...] | None = None
    speculation: SpeculationStats | None = None
    """How well guessing went, if tokens were guessed."""

    @property
    def completion_tokens(self) -> int:
        """How many tokens were generated."""
        return len(self.token_ids)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        values: dict[str, Any] = {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "finish_detail": self.finish_detail,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "seed": self.seed,
            "timings": self.timings.as_dict(),
            "token_ids": list(self.token_ids),
        }
        if self.speculation is not None:
            values["speculation"] = self.speculation.as_dict()
        if self.logprobs is not None:
            values["logprobs"] = [
                {
                    "token_id": score.token_id,
                    "logprob": _finite(score.logprob),
                    "top": [{"token_id": t.token_id, "logprob": _finite(t.logprob)} for t in score.top],
                }
                for score in self.logprobs
            ]
        return values


@dataclass(frozen=True, slots=True)
class GenerationEvent:
    """One step of a generation.

    Each token gives one event.  ``text`` is what can be shown now: it is empty
    while a character or a possible stop string is incomplete.  The last event
    has no token: it brings the text that was still held back, and ``result``.
    ``elapsed_s`` counts from the start of the generation.
    """

    text: str
    token_id: int | None
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()
    elapsed_s: float = 0.0
    result: GenerationResult | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set on the last event only."""
        return self.result.finish_reason if self.result else None


def _finite(logprob: float) -> float | None:
    """JSON has no infinity: a probability of 0 becomes null."""
    return logprob if logprob > float("-inf") else None
