"""A lock between processes: one fetches, the others wait and find the file there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def folder_lock(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock file ``path`` for the length of the block, and remove it at the end.

    Calls ``waiting`` once when another process holds it. Yields True under the
    lock, and False where the file system has no locks (the caller must then not
    touch what may be another process's). The system frees the lock when its
    holder dies.
    """
    announced = False
    while True:
        with path.open("ab") as file:
            state = try_lock(file)
            if state == "held" and not _is_still_there(file, path):
                continue  # its last holder has removed it since it was opened: the next one is another file
            if state != "taken":
                try:
                    yield state == "held"
                finally:
                    with suppress(OSError):  # where an open file cannot be removed, an empty one stays
                        path.unlink()
                return
        if not announced:
            waiting()
            announced = True
        time.sleep(0.2)


def _is_still_there(file: IO[bytes], path: Path) -> bool:
    """Whether ``path`` is the file that was opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def try_lock(file: IO[bytes]) -> str:
    """Try to lock: "held", "taken" by another process, or "unsupported" here."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return "taken"
    except (OSError, ImportError):
        return "unsupported"
    return "held"
