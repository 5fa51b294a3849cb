"""A lock between processes: one fetches, the others wait and find the file there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmgen.files import is_at, try_lock


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
            if state == "held" and not is_at(file, path):
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
