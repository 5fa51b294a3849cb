"""What guessing has gained and lost so far, and so what it may lose yet."""

from __future__ import annotations

_LOAN, _LOSS = 2.3, 0.015
"""What guessing may lose: so many plain steps, or a share of the time that plain steps would have taken, whichever is
more.  Below 3% over 96 tokens."""
_MOST_GAIN = 8.0
"""How much of a gain is remembered, which may be lost again, in plain steps."""


class Account:
    """The time that guessing took beside that of the plain steps in its place.

    What it takes is measured, what plain steps would have taken is an estimate, which the next plain steps may show
    to be wrong.  So the steps since the last plain ones stay open: they are valued by what is known
    at the time, until :meth:`settle`.
    """

    def __init__(self) -> None:
        self.plain_s = 0.0
        """The time that plain steps would have taken for all tokens so far."""
        self._settled_s = 0.0
        self._open_s = 0.0  # what steps with guesses took since then, with the draft's part
        self._open_steps = 0.0  # the plain steps in their place

    def spent(self, seconds: float) -> None:
        """Guesses, or a run that checks some, took so long."""
        self._open_s += seconds

    def replaced(self, steps: float, step_s: float) -> None:
        """So many plain steps, of ``step_s`` seconds as far as known, would have been needed without guesses."""
        self._open_steps += steps
        if self.loss_s(step_s) <= -_MOST_GAIN * step_s:
            self.settle(step_s)

    def credit(self, steps: float, step_s: float) -> None:
        """So much may be lost beside the rest."""
        self._settled_s -= steps * step_s

    def carry_over(self, steps: float, step_s: float) -> None:
        """A new answer begins: of what was gained before it, no more than so much may be lost again."""
        excess = -steps * step_s - self.loss_s(step_s)
        self._settled_s += max(0.0, excess)

    def loss_s(self, step_s: float) -> float:
        """The loss so far, below 0 a gain, if a plain step takes ``step_s``."""
        return max(self._settled_s + self._open_s - self._open_steps * step_s, -_MOST_GAIN * step_s)

    def settle(self, step_s: float) -> None:
        """Plain steps have shown that one takes ``step_s``: value by that all that is open."""
        self._settled_s = self.loss_s(step_s)
        self._open_s = self._open_steps = 0.0

    def room_s(self, step_s: float) -> float:
        """Seconds that guessing may lose now."""
        return max(_LOAN * step_s, _LOSS * self.plain_s) - self.loss_s(step_s)
