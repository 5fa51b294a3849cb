"""Warnings about a context that fills up."""

from __future__ import annotations

_WARN_AT = (0.75, 0.9)
_LAST_TURN = 1.0
WARNINGS: tuple[float, ...] = (*_WARN_AT, _LAST_TURN)
"""The keys under which given warnings are remembered."""


def warning(used: int, n_ctx: int, turn: int, *, full: bool, shifts: bool, said: set[object]) -> str | None:
    """The warning after an answer, or None; ``said`` records it.

    ``used``: the conversation's tokens; ``turn``: those of the last turn, taken as an estimate for
    the next; ``full``: the answer ended because the context was full; ``shifts``: the oldest tokens
    are dropped.
    """
    then = "the oldest turns will be left out" if shifts else "the conversation will stop"
    if full:
        return (
            f"the context is full: all {n_ctx} tokens are used; /undo or /clear make room, "
            "and /set context_full shift lets the oldest turns go"
        )
    if used > n_ctx:
        return (
            f"the answer needed more than the context of {n_ctx} tokens: what was oldest was let go "
            f"while it came (context_full shift); with the next message {then}"
        )
    passed = [share for share in _WARN_AT if used >= share * n_ctx and share not in said]
    if used + turn >= n_ctx and _LAST_TURN not in said:
        passed.append(_LAST_TURN)
    if not passed:
        return None
    said.update(passed)
    return f"the context is {used / n_ctx:.0%} full ({used} of {n_ctx} tokens); when it is full, {then}"
