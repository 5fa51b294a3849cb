"""How many threads a run takes, when something else may want the processor too.

Threads that meet at barriers are as fast as the slowest of them.  With one more busy
process on the machine each of them loses its processor now and then, all others wait,
and two threads end up slower than one.  So: as long as nothing is wrong, all threads
run.  At a sign of trouble (thread 0 was off its processor, or gave it up while it
waited) the same work is timed with all threads and with one, and the faster goes on.
The other is tried again after a hold that doubles with each confirmation; nothing
here trusts a best time of the past.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_PROBE = 4  # runs that are timed before the counts are compared
_FIRST_HOLD = 16
_LONGEST_HOLD = 512
_LOST_SHARE = 0.08  # of the wall time off the processor: a sign of trouble
_LONG_WAITS = 3  # offers of the processor at barriers, per millisecond: likewise


class Pace:
    """The thread count of one program, adapted to what its runs took."""

    def __init__(self, n_threads: int) -> None:
        self._all = n_threads
        self.current = n_threads
        self._times: dict[int, deque[float]] = {n_threads: deque(maxlen=_PROBE), 1: deque(maxlen=_PROBE)}
        self._hold = _FIRST_HOLD
        self._left = 0  # runs until the next comparison is allowed (all threads) or due (one)
        self._probing = False

    def choose(self) -> int:
        """Threads for the next run."""
        return self.current

    def report(self, seconds: float, lost: float, waits: int, wall: float) -> None:
        """What a run took: seconds per token; of its ``wall`` seconds, how many thread 0 was off the processor."""
        if self._all == 1:
            return
        self._times[self.current].append(seconds)
        self._left -= 1
        if self._probing:
            if len(self._times[self.current]) == _PROBE:
                self._compare()
            return
        if self._left > 0:
            return
        trouble = lost > _LOST_SHARE * wall or waits > _LONG_WAITS * wall * 1e3
        if self.current == 1 or trouble:
            self._start_probe()

    def _start_probe(self) -> None:
        """Time the other count; the count so far has just been timed."""
        self._before = self.current
        self._probing = True
        self.current = self._all if self.current == 1 else 1
        self._times[self.current].clear()

    def _compare(self) -> None:
        other = self._all if self.current == 1 else 1
        if len(self._times[other]) < 2:
            return
        best = min((1, self._all), key=lambda n: median(self._times[n]))
        confirmed = best == self._before
        self._hold = min(2 * self._hold, _LONGEST_HOLD) if confirmed else _FIRST_HOLD
        self._left = self._hold
        self.current = best
        self._probing = False
