"""How many threads a run takes, when something else may want the processor too.

Threads that meet at barriers are as fast as the slowest of them.  With one more busy
process on the machine each of them loses its processor now and then, all others wait,
and two threads end up slower than one.  So: as long as nothing is wrong, all threads
run.  At a sign of trouble (thread 0 was off its processor, or gave it up while it
waited) the same work is timed with all threads and with one, and the faster goes on.
The other is tried again after a hold that doubles with each confirmation; nothing
here trusts a best time of the past.

A long run (a chunk of a prompt) has no second chance, so before it the system is
asked how many threads want to run at this moment.
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from statistics import median

_PROBE_RUNS = 4  # runs that are timed before the counts are compared ...
_PROBE_SECONDS = 0.05  # ... unless they took this long together
_CLEARLY_WORSE = 1.5  # times the other count's median: one run is enough
_FIRST_HOLD = 32  # runs until the loser is tried again
_LONGEST_HOLD = 1024
_LOST_SHARE = 0.08  # of the wall time off the processor: a sign of trouble
_LONG_WAITS = 3  # offers of the processor at barriers, per millisecond: likewise
_LONG_RUN = 64  # tokens of a run that is worth a look around first


class Pace:
    """The thread count of one program, adapted to what its runs took."""

    def __init__(self, n_threads: int) -> None:
        self._all = n_threads
        self.current = n_threads
        self._times: dict[int, deque[float]] = {n: deque(maxlen=_PROBE_RUNS) for n in {1, n_threads}}
        self._hold = _FIRST_HOLD
        self._left = 0  # runs until the other count is tried again
        self._probing = False
        self._probe_seconds = 0.0

    def choose(self, n_tokens: int) -> int:
        """Threads for the next run, of ``n_tokens`` tokens."""
        if self._all > 1 and n_tokens >= _LONG_RUN:
            free = (os.cpu_count() or 1) - _busy_neighbours(self._all)  # both speak of the whole machine
            return max(1, min(self._all, free))
        return self.current

    def report(self, n_threads: int, n_tokens: int, wall: float, lost: float, waits: int) -> None:
        """What a run took: ``wall`` seconds, ``lost`` of which thread 0 was off the processor, long waits."""
        if self._all == 1 or n_tokens >= _LONG_RUN or n_threads != self.current:
            return
        times = self._times[n_threads]
        times.append(wall / n_tokens)
        self._left -= 1
        if self._probing:
            self._probe_seconds += wall
            before = self._times[self._other()]
            hopeless = bool(before) and times[-1] > _CLEARLY_WORSE * median(before)
            if hopeless or len(times) == _PROBE_RUNS or self._probe_seconds > _PROBE_SECONDS:
                self._decide()
        elif self._left <= 0:
            trouble = lost > _LOST_SHARE * wall or waits > _LONG_WAITS * wall * 1e3
            if trouble or self.current == 1:
                self._start_probe()

    def _other(self) -> int:
        return self._all if self.current == 1 else 1

    def _start_probe(self) -> None:
        """Time the other count; the count so far has just been timed."""
        self.current = self._other()
        self._times[self.current].clear()
        self._probing, self._probe_seconds = True, 0.0

    def _decide(self) -> None:
        tried, before = self.current, self._other()
        better = median(self._times[tried]) < median(self._times[before])
        self._hold = _FIRST_HOLD if better else min(2 * self._hold, _LONGEST_HOLD)
        self._left = self._hold
        self.current = tried if better else before
        self._probing = False


def _busy_neighbours(own: int) -> int:
    """Threads of others that want to run now, and still do a moment later; 0 where the system does not tell."""
    least = own + (1 << 16)
    for attempt in range(3):
        try:
            # "running/existing": see proc_loadavg(5); this thread is one of the running ones
            running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
        except (OSError, ValueError, IndexError):
            return 0
        least = min(least, running)
        if least <= 0:
            return 0
        if attempt < 2:
            time.sleep(0.002)  # long enough for workers that just finished a run to park
    return least
