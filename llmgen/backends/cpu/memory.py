"""Memory that is touched only where it is used."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from llmgen.backends.cpu.runtime import cgroup
from llmgen.errors import LLMGenError

_BESIDES = 256 << 20
"""Bytes that a small model takes besides its cache: working memory, threads' stacks, compiled code."""


def anonymous(nbytes: int) -> mmap.mmap:
    """Zeroed memory that is touched only where it is used; a forked child gets its own copy.  Raises OSError."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, max(nbytes, 1))


class Arena:
    """``nbytes`` of zeroed address space, aligned to a page."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        try:
            self._memory = anonymous(nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise LLMGenError(
                f"{purpose} needs {nbytes / 2**20:.0f} MiB of memory, which the system refuses; "
                "choose a smaller context (-c) or a smaller model"
            ) from error
        self.data = np.frombuffer(self._memory, dtype=np.uint8)
        self.floats = self.data[: nbytes // 4 * 4].view(np.float32)
        self.address = int(self.data.ctypes.data)
        self.nbytes = nbytes


def _below_limits() -> list[int]:
    """Bytes left by the process's limits on address space and data (getrlimit(2), proc_pid_statm(5)); Linux only."""
    try:
        import resource

        total, _, _, _, _, data, *_ = map(int, Path("/proc/self/statm").read_text().split())
        used = {resource.RLIMIT_AS: total, resource.RLIMIT_DATA: data}
        limits = [(resource.getrlimit(limit)[0], pages) for limit, pages in used.items()]
    except (ImportError, AttributeError, OSError, ValueError):
        return []
    page = os.sysconf("SC_PAGE_SIZE")
    return [
        max(0, limit - pages * page - _BESIDES) for limit, pages in limits if limit != resource.RLIM_INFINITY
    ]


def available_bytes() -> int | None:
    """Memory that this process can take without swapping, within control groups and its limits; None if unknown."""
    free = free_bytes()
    candidates = _below_limits() if free is None else [free, *_below_limits()]
    return min(candidates, default=None)


def free_bytes() -> int | None:
    """As :func:`available_bytes`, for what takes no address space of its own: a process's limits do not apply."""
    candidates = []
    try:  # proc_meminfo(5)
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                candidates.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError, IndexError):
        pass
    if (left := cgroup.memory_left()) is not None:
        candidates.append(left)
    if candidates:
        return min(candidates)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def check_recurrent(nbytes: int) -> None:
    """Raises LLMGenError where the recurrent states of one sequence do not fit into half of the free memory.

    Every run touches all of them, however short the context.
    """
    free = available_bytes()
    if free is not None and nbytes > free // 2:
        raise LLMGenError(
            f"a sequence of this model has recurrent states of {nbytes / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB "
            "of memory are free, of which it may take half; close other programs or choose a smaller model"
        )
