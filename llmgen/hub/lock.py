"""A lock between processes: one fetches, the others wait and find the file there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def folder_lock(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock file ``path`` for the length of the block.

    Calls ``waiting`` once when another process holds it. Yields True under the
    lock, and False where the file system has no locks (the caller must then not
    touch what may be another process's). The system frees the lock when its
    holder dies; the empty file stays, since removing it would race.
    """
    with path.open("ab") as file:
        announced = False
        while (state := _try_lock(file)) == "taken":
            if not announced:
                waiting()
                announced = True
            time.sleep(0.2)
        yield state == "held"


def _try_lock(file: IO[bytes]) -> str:
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
