"""The thread team, seen from Python."""

from __future__ import annotations

import os
import threading
import weakref

import numpy as np

from llmgen.kernels.layout import TEAM_STOP, team_bytes
from llmgen.kernels.library import KernelLibrary

WORK, POST, DISMISS = "team:work", "team:post", "team:dismiss"
KERNELS = (WORK, POST, DISMISS)


class ThreadTeam:
    """N threads that run programs together; the caller's thread is number 0.

    Workers are started with the first job that needs them.  After a fork the child
    has no workers: it starts its own.
    """

    def __init__(self, n_threads: int, library: KernelLibrary) -> None:
        self.n_threads = n_threads
        self._library = library
        self._post = library.function(POST, 5)
        self._work = library.function(WORK, 2)
        self._dismiss = library.function(DISMISS, 2)
        self._workers: list[threading.Thread] = []
        self._new_block()
        _teams.add(self)

    def _new_block(self) -> None:
        self._memory = np.zeros(team_bytes(self.n_threads) // 8 + 16, dtype=np.int64)
        self._address = -(-self._memory.ctypes.data // 128) * 128
        self._stop_word = (self._address + TEAM_STOP - self._memory.ctypes.data) // 8
        self._pid = os.getpid()

    def run(self, table: int, table_bytes: int, n_steps: int, n_threads: int) -> bool:
        """Run one table per thread; False when ``stop`` ended it early."""
        if self._pid != os.getpid():
            self._workers = []
            self._new_block()
        while len(self._workers) < n_threads - 1:
            self._start_worker()
        finished = self._post(self._address, table, table_bytes, n_steps, n_threads) == 0
        return finished

    def _start_worker(self) -> None:
        thread = len(self._workers) + 1
        worker = threading.Thread(
            target=self._work, args=(self._address, thread), name=f"llmgen-{thread}", daemon=True
        )
        worker.start()
        self._workers.append(worker)

    def stop(self) -> None:
        """End the running job at its next barrier; from any thread."""
        self._memory[self._stop_word] = 1

    def clear_stop(self) -> None:
        self._memory[self._stop_word] = 0

    @property
    def stop_requested(self) -> bool:
        return bool(self._memory[self._stop_word])

    def close(self) -> None:
        """Send the workers home and wait for them."""
        if self._workers and self._pid == os.getpid():
            self._dismiss(self._address, self.n_threads)
            for worker in self._workers:
                worker.join()
        self._workers = []


_teams: weakref.WeakSet[ThreadTeam] = weakref.WeakSet()


def _close_all() -> None:
    for team in list(_teams):
        team.close()


# workers run outside the interpreter: they must be gone before it is torn down
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
