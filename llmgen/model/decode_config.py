"""How generated tokens attend to a long context: --decode-plan and what belongs to it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from llmgen.errors import UsageError, shown

PLANS = ("none", "auto", "fixed")
MOST_TOGETHER = 8
"""Tokens of a run in the generated role."""


@dataclass(frozen=True)
class DecodePlan:
    """What a backend is told.  Only ``local_window`` changes results.

    together: by bucket of the context's length, how many tokens of a sequence read a key block together;
    borders: the longest context of each bucket but the last.  local_window: 0, or of how many keys a token sees
    the last, besides the first few.
    """

    together: tuple[int, ...] = (MOST_TOGETHER,)
    borders: tuple[int, ...] = ()
    local_window: int = 0

    def together_at(self, length: int) -> int:
        """For a context of ``length`` tokens."""
        return self.together[bisect_left(self.borders, length)]


@dataclass(frozen=True)
class DecodeConfig:
    """How generated tokens attend.

    plan: "none" takes each token by itself, "auto" takes as many together as is fastest, which changes no
    result, "fixed" takes q_chunk of them (8 unless given).  local_window, with "fixed": an approximation, in which
    a generated token sees only the first 64 keys and the last ``local_window``.  Raises UsageError.
    """

    plan: str = "auto"
    q_chunk: int | None = None
    local_window: int | None = None

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            raise UsageError(
                f"the decode plan is {shown(self.plan)}, expected none, auto or fixed (--decode-plan)"
            )
        for name, flag, most in (
            ("q_chunk", "--decode-q-chunk", MOST_TOGETHER),
            ("local_window", "--decode-local-window", 1 << 30),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise UsageError(
                    f"{name} must be a whole number from 1 to {most}, not {shown(value)} ({flag})"
                )
            if self.plan != "fixed":
                raise UsageError(f"{flag} goes with --decode-plan fixed; add that, or leave {flag} out")

    @classmethod
    def of(cls, plan: object) -> DecodeConfig:
        """From the name of a plan, or itself."""
        if isinstance(plan, DecodeConfig):
            return plan
        if not isinstance(plan, str):
            raise UsageError(f"decode_plan must be a text or a DecodeConfig, not {type(plan).__name__}")
        return cls(plan)

    @property
    def resolved(self) -> DecodePlan:
        """What the backend is told."""
        together = 1 if self.plan == "none" else self.q_chunk or MOST_TOGETHER
        return DecodePlan((together,), (), self.local_window or 0)
