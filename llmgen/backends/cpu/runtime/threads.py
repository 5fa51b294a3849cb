"""How many threads to use, and the system calls that they need."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from llmgen.backends.cpu.runtime import cgroup
from llmgen.errors import UsageError, shown

MAX_THREADS = 256
_MOST_DIGITS = 9


def _allowed_cpus() -> set[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int) -> object:
    """An identifier of the physical core of a logical CPU."""
    base = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (base / "physical_package_id").read_text(), (base / "core_id").read_text()
    except OSError:
        return cpu


def usable_cores() -> int:
    """Physical cores that this process may use, by its affinity and its control groups' quota."""
    cpus = _allowed_cpus()
    cores = len({_core_of(cpu) for cpu in cpus}) or 1
    quota = cgroup.cpu_quota()
    if quota is not None:
        cores = min(cores, max(1, int(quota)))
    return cores


def default_threads() -> int:
    """$LLMGEN_THREADS, else ``usable_cores``, as many as a model takes.  Raises UsageError."""
    value = os.environ.get("LLMGEN_THREADS")
    if not value:
        return min(usable_cores(), MAX_THREADS)
    if not value.isdecimal() or len(value) > _MOST_DIGITS or int(value) < 1:
        raise UsageError(f"LLMGEN_THREADS is {shown(value)}, expected a whole number of at least 1")
    return int(value)


def register_system_calls(add_symbol: Callable[[str, int], None]) -> None:
    """Register the two calls that compiled code needs: yield the processor, and sleep for microseconds."""

    def address(function: object) -> int:
        value = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
        assert value is not None
        return value

    if os.name == "nt":
        kernel32 = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
        add_symbol("llmgen_yield", address(kernel32.SwitchToThread))
        # Sleep takes milliseconds, so a thread that asks for 50 us sleeps longer
        add_symbol("llmgen_sleep", address(kernel32.Sleep))
        return
    libc = ctypes.CDLL(None)
    add_symbol("llmgen_yield", address(libc.sched_yield))
    add_symbol("llmgen_sleep", address(libc.usleep))
