"""How many threads a run takes, when other processes may want the processors too.

Threads that meet at barriers are as fast as the slowest of them.  With one more busy
process on the machine each of them loses its processor now and then, all others wait,
and two threads end up slower than one.  So before the first run and before a long one (a
chunk of a prompt), which gets no second chance, the system is asked how many threads of
other processes want to run.  In between, at a sign of trouble (thread 0 was off its
processor, or yielded it while it waited), up to four runs are timed.  If the trouble goes on, a few
more are timed with another number of threads (the free processors, or half of the threads if
no other process seems busy), and the faster count is kept.  Fewer threads than all are never final: another
count is tried after a number of runs that doubles with each confirmation, or as soon as fewer
threads of other processes want to run than at the last decision.  Best times of the past are not trusted.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from statistics import mean

_PROBE_RUNS = 4
"""Runs that are timed with each of two thread counts before the two are compared ..."""
_PROBE_SECONDS = 0.05
"""... unless they have taken this long together."""
_CLEARLY_WORSE = 1.5
"""A single run is enough if it takes this many times the other count's mean."""
_FIRST_HOLD = 32
"""Runs until another count is tried again; doubled each time it loses, up to ``_LONGEST_HOLD`` ..."""
_LONGEST_HOLD = 1024
_HOLD_UNPROVEN = 8
"""... and where fewer threads were taken only because the system said that other processes want to run."""
_LOOKS = 4
"""How often the system is asked about other processes in that time; at least every 32 runs, at most every 8."""
_LOST_SHARE = 0.08
"""A run is in trouble if thread 0 was off its processor for this share of the wall time ..."""
_LONG_WAITS = 150
"""... or yielded it at barriers this often per millisecond; a yield takes about half a microsecond."""
_LASTING = 2
"""Trouble lasts if this many of the runs that are timed after the first one are in trouble, too."""
_LONG_RUN = 64
"""Before a run of this many tokens, the system is asked how many threads of other processes want to run."""


class ThreadPolicy:
    """The thread count of one program, adapted to what its runs took.

    per_run: compare what whole runs took, not what a token took; for generated tokens, since a
    run reads all weights once however many tokens it has.  others: (n) -> how many threads
    of other processes want to run, when n threads are our own; glance: the same without a
    moment's wait, right after a run of n threads.
    """

    def __init__(
        self,
        n_threads: int,
        *,
        per_run: bool = False,
        others: Callable[[int], int] | None = None,
        glance: Callable[[int], int] | None = None,
    ) -> None:
        self._all = n_threads
        self._per_run = per_run
        self._others = others or _other_running_threads
        self._glance = glance or others or _others_at_a_glance
        self.current = n_threads
        self._before = n_threads  # the count to compare with while another is tried
        self._times: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_PROBE_RUNS))
        self._first = True
        self._hold = _FIRST_HOLD
        self._left = 0  # runs until another count may be tried
        self._seen = 0  # threads of other processes when the system was asked last ...
        self._others_then = 0  # ... and at the last decision
        self._watching = self._probing = False  # timing the current count; timing another one
        self._troubled = 0  # runs in trouble while the current count is timed
        self._probe_seconds = 0.0

    def choose(self, n_tokens: int) -> int:
        """Threads for the next run, of ``n_tokens`` tokens."""
        if self._all == 1:
            return 1
        if n_tokens >= _LONG_RUN:
            return self._free()
        if self._first:
            self._first = False
            self.current = self._free()
            self._left = _HOLD_UNPROVEN
            self._others_then = self._seen
        return self.current

    def report(self, n_threads: int, n_tokens: int, wall: float, lost: float, waits: int) -> None:
        """What a run took: ``wall`` seconds, ``lost`` of which thread 0 was off the processor, long waits."""
        if self._all == 1 or n_tokens >= _LONG_RUN or n_threads != self.current:
            return
        self._left -= 1
        self._look()
        trouble = lost > _LOST_SHARE * wall or waits > _LONG_WAITS * wall * 1e3
        if self._probing or self._watching:
            self._times[n_threads].append(wall if self._per_run else wall / n_tokens)
            if self._probing:
                self._probe(wall)
            else:
                self._watch(trouble)
        elif self._left <= 0 and (trouble or self.current < self._all):
            # earlier times say nothing about now
            self._times[n_threads].clear()
            self._watching, self._troubled = True, 0

    def _watch(self, trouble: bool) -> None:
        """A run of the current count has been timed; is another one worth a try?"""
        self._troubled += trouble
        lasting = self._troubled == _LASTING
        if lasting or len(self._times[self.current]) == _PROBE_RUNS:
            self._watching = False
            if lasting or self.current < self._all:
                self._start_probe()

    def _probe(self, wall: float) -> None:
        """A run of another count has been timed; decide when that is enough."""
        self._probe_seconds += wall
        times, before = self._times[self.current], self._times[self._before]
        hopeless = bool(before) and times[-1] > _CLEARLY_WORSE * mean(before)
        if hopeless or len(times) == _PROBE_RUNS or self._probe_seconds > _PROBE_SECONDS:
            self._decide()

    def _look(self) -> None:
        """Let another count be tried now if there is room for one because other processes have gone."""
        between = min(32, max(8, self._hold // _LOOKS))
        if self.current == self._all or self._left <= 0 or self._left % between:
            return
        now = self._glance(self.current)
        if now < self._others_then and (os.cpu_count() or 1) - now > self.current:
            self._left = 0

    def _free(self) -> int:
        """How many of our threads find a processor that nobody else wants; takes a moment's wait."""
        self._seen = self._others(self._all)
        return self._beside(self._seen)

    def _beside(self, others: int) -> int:
        """How many of our threads find a processor beside so many threads of other processes."""
        return max(1, min(self._all, (os.cpu_count() or 1) - others))

    def _start_probe(self) -> None:
        """Time another count; the current one has just been timed."""
        self._before = self.current
        self.current = self._beside(self._glance(self.current))
        if self.current == self._before:
            self.current = self._all if self._before < self._all else max(1, self._all // 2)
        self._times[self.current].clear()
        self._probing, self._probe_seconds = True, 0.0

    def _decide(self) -> None:
        tried, before = self.current, self._before
        better = mean(self._times[tried]) < mean(self._times[before])
        self._hold = _FIRST_HOLD if better else min(2 * self._hold, _LONGEST_HOLD)
        self._left = self._hold
        self.current = tried if better else before
        self._others_then = self._glance(tried)
        self._probing = False


def _running() -> int:
    """Threads that run or want to, this one among them; see proc_loadavg(5).  Raises where the system does not tell."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])


_UNTOLD = (OSError, ValueError, IndexError)


def _others_at_a_glance(own: int) -> int:
    """Threads of other processes that want to run, while all of our ``own`` still do; 0 if the system does not tell."""
    try:
        return max(0, _running() - own)
    except _UNTOLD:
        return 0


def _other_running_threads(own: int) -> int:
    """Threads of other processes that want to run, now and a moment later; 0 if the system does not tell."""
    least = own + (1 << 16)
    for attempt in range(3):
        try:
            running = _running() - 1  # this thread is one of them
        except _UNTOLD:
            return 0
        least = min(least, running)
        if least <= 0:
            return 0
        if attempt < 2:
            time.sleep(0.002)  # long enough for workers that just finished a run to park
    return least
