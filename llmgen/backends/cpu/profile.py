"""Where the processor time of a run goes, kernel by kernel."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from llmgen.backends.cpu.kernels.layout import STEP_BYTES, STEP_HEADER
from llmgen.backends.cpu.plan import Step

_STEP = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_CALLS = 200


class Profile:
    """Runs the steps of a table one by one on the calling thread and adds up their time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """By kernel, in the processor time of the thread; waiting for other threads is no part of it."""
        self._overhead = _seconds_of_nothing()
        self._nothing = _nothing()

    def run(self, steps: Sequence[Step], table: int) -> None:
        """table: the address of the table that thread 0 of 1 has for these steps."""
        for i, step in enumerate(steps):
            address = table + STEP_BYTES * i
            function = _STEP(ctypes.c_int64.from_address(address).value)
            self._nothing(0, 0, 1)  # the last step's weights have driven the code of a call out of the caches
            started = time.thread_time()
            function(address + STEP_HEADER, 0, 1)
            self.seconds[step.kernel] += max(0.0, time.thread_time() - started - self._overhead)


def _nothing() -> Callable[[int, int, int], None]:
    """A step that does nothing."""
    return _STEP(ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value or 0)


def _seconds_of_nothing() -> float:
    """What the clock and a call cost, which a kernel of a microsecond must not be charged with."""
    nothing, seconds = _nothing(), []
    for _ in range(_CALLS):
        started = time.thread_time()
        nothing(0, 0, 1)
        seconds.append(time.thread_time() - started)
    return sorted(seconds)[len(seconds) // 2]
