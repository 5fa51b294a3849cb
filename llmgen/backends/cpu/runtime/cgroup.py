"""The control groups that this process belongs to, and their limits.

See the kernel's documentation of cgroup v2 and v1, and cgroups(7) for /proc/self/cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def folders(controller: str) -> list[Path]:
    """The folders of the groups that limit ``controller``, from the process's own up to the root.

    The limits of all of them apply.  In a container the root may be the container's own
    group while the path is the host's, so folders may be missing.
    """
    try:
        lines = OWN.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    found = [folder for line in lines for folder in _of_line(line, controller)]
    return list(dict.fromkeys([*found, ROOT, ROOT / controller]))


def _of_line(line: str, controller: str) -> Iterator[Path]:
    """The folders that one line of /proc/self/cgroup, ``id:controllers:path``, stands for."""
    _, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if controllers and controller not in controllers.split(","):
        return
    group = PurePosixPath(path.lstrip("/"))
    if ".." in group.parts:  # outside of what this process can see
        return
    bases = (ROOT / controllers, ROOT / controller) if controllers else (ROOT, ROOT / "unified")
    for base in bases:
        yield from (base / part for part in (group, *group.parents))


def cpu_quota() -> float | None:
    """How many CPUs' time the groups may use, None without a limit."""
    quotas = [quota for folder in folders("cpu") if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def memory_left() -> int | None:
    """Bytes that the groups may still take, None without a limit."""
    left = [
        rest
        for folder in folders("memory")
        for names in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        )
        if (rest := _memory_left(folder, *names)) is not None
    ]
    return min(left, default=None)


def _memory_left(folder: Path, limit_name: str, used_name: str, prefix: str) -> int | None:
    """``prefix``: of the names in memory.stat that include the groups within this one."""
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max":
            return None
        left = max(0, int(limit) - int((folder / used_name).read_text()))
        # The page cache counts as used, and a model file is in it: as inactive once it was read, as active once it
        # was read again.  The system takes both back, and counts both as available in /proc/meminfo.
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in (f"{prefix}inactive_file", f"{prefix}active_file"):
                left += int(value)
    except (OSError, ValueError):
        return None
    return left
