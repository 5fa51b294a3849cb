"""What other processes took of the processor while we measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

if os.name == "posix":
    import resource


class Neighbours:
    """Counts from its making on; children of this process count as ours once they have ended."""

    def __init__(self) -> None:
        self._wall, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def share(self) -> float | None:
        """Of one core, on average; None where the system does not tell."""
        busy = _busy_seconds()
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (_own_seconds() - self._own)
        return max(0.0, others / (time.monotonic() - self._wall))


def _busy_seconds() -> float | None:
    """Seconds that all cores worked, for anyone, and time stolen from the machine; see proc_stat(5)."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _idle, _waiting, irq, softirq, steal = ticks[:8]
    return float(user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    if os.name != "posix":
        return 0.0
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
