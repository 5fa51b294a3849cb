"""How generated tokens attend to a long context: --decode-plan and what belongs to it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from llmgen.arguments import whole_number
from llmgen.errors import UsageError, shown

PLANS = ("none", "auto", "fixed")
MOST_TOGETHER = 8
"""Tokens of a run in the generated role."""
STREAMS = (1, 2, 4, 8)
"""In how many streams the keys and values of the next block may be asked for."""
BUCKETS = (512, 2048)
"""The longest short context, and the longest of middle length."""
_MOST_BUCKETS = 8
_LONGEST = 1 << 40


@dataclass(frozen=True)
class Reading:
    """How a run of generated tokens reads the cache, which changes no result.

    together: how many tokens of a sequence read a key block together; streams: from how many places at once the
    next block's keys and values are fetched while one is read.
    """

    together: int = MOST_TOGETHER
    streams: int = 1


RULE = Reading(streams=4)
"""What auto begins with."""


@dataclass(frozen=True)
class Measured:
    """What was found out for a bucket of context lengths.

    reading: the fastest; seconds: of the best step, by the number of streams.
    """

    reading: Reading
    seconds: dict[int, float]


@dataclass(frozen=True)
class DecodePlan:
    """What a backend is told of how to attend. Only ``local_window`` changes results.

    readings: by bucket of the context's length; borders: the longest context of each bucket but the last.
    adapts: whether the backend may find better readings by measuring.  local_window: 0, or of how many keys a token
    sees the last, besides the first few.
    """

    readings: tuple[Reading, ...] = (Reading(),)
    borders: tuple[int, ...] = ()
    adapts: bool = False
    local_window: int = 0

    def bucket(self, length: int) -> int:
        """The number of the bucket of a context of ``length`` tokens."""
        return bisect_left(self.borders, length)


@dataclass(frozen=True)
class DecodeConfig:
    """How generated tokens attend.

    plan: "none" takes each token by itself, "auto" reads the cache as is fastest, which changes no result, and finds
    that out by measuring, apart for contexts up to each of ``buckets`` tokens (512 and 2048) and beyond.
    "fixed" takes q_chunk tokens together (8 unless given).  local_window, with "fixed": an approximation, in which a
    generated token sees only the first 64 keys and the last ``local_window``.  Raises UsageError.
    """

    plan: str = "auto"
    q_chunk: int | None = None
    local_window: int | None = None
    buckets: tuple[int, ...] | list[int] | None = None

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
            object.__setattr__(self, name, whole_number(f"{name} ({flag})", value, 1, most))
            if self.plan != "fixed":
                raise UsageError(f"{flag} goes with --decode-plan fixed; add that, or leave {flag} out")
        if self.buckets is not None:
            if self.plan != "auto":
                raise UsageError(
                    "--decode-buckets goes with --decode-plan auto; choose that, or leave --decode-buckets out"
                )
            object.__setattr__(self, "buckets", _checked_buckets(self.buckets))

    @classmethod
    def of(cls, plan: object) -> DecodeConfig:
        """A configuration, or one made from the name of a plan."""
        if isinstance(plan, DecodeConfig):
            return plan
        if not isinstance(plan, str):
            raise UsageError(f"decode_plan must be a text or a DecodeConfig, not {type(plan).__name__}")
        return cls(plan)

    @property
    def resolved(self) -> DecodePlan:
        """What the backend is told."""
        if self.plan == "auto":
            borders = BUCKETS if self.buckets is None else tuple(self.buckets)
            return DecodePlan((RULE,) * (len(borders) + 1), borders, adapts=True)
        together = 1 if self.plan == "none" else self.q_chunk or MOST_TOGETHER
        return DecodePlan((Reading(together),), local_window=self.local_window or 0)


def _checked_buckets(buckets: object) -> tuple[int, ...]:
    try:
        given = buckets if isinstance(buckets, tuple | list) else ()
        lengths = tuple(whole_number("a length", length, 1, _LONGEST) for length in given)
    except UsageError:
        lengths = ()
    if 1 <= len(lengths) <= _MOST_BUCKETS and list(lengths) == sorted(set(lengths)):
        return lengths
    raise UsageError(
        f"buckets must be up to {_MOST_BUCKETS} context lengths from 1 token up, each longer than the one "
        f"before, not {_listed(buckets)} (--decode-buckets)"
    )


def _listed(buckets: object) -> str:
    """What was given as buckets: a few numbers as they are typed."""
    if isinstance(buckets, tuple | list) and 1 <= len(buckets) <= 2 * _MOST_BUCKETS:
        return ",".join(shown(length, 20) for length in buckets)
    return shown(buckets)
