"""The thread team, seen from Python."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.layout import TEAM_STOP, TEAM_WAITS, team_bytes
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.errors import Interrupted

WORK, POST, DISMISS = "team:work", "team:post", "team:dismiss"
KERNELS = (WORK, POST, DISMISS)


class _Block:
    """The memory that the threads share, and the workers that wait on it."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.memory = np.zeros(team_bytes(n_threads) // 8 + 16, dtype=np.int64)
        self.address = -(-int(self.memory.ctypes.data) // 128) * 128
        self.words = self.memory.data
        """The same memory as Python's integers, which are quicker to read than numpy's."""
        self.workers: list[threading.Thread] = []
        self.pid = os.getpid()

    def index(self, field: int) -> int:
        return (self.address + field - int(self.memory.ctypes.data)) // 8

    def start_worker(self, work: Any) -> None:
        thread = len(self.workers) + 1
        # the thread refers to the block, so its memory outlives the team
        worker = threading.Thread(
            target=lambda: work(self.address, thread), name=f"llmgen-{thread}", daemon=True
        )
        worker.start()
        self.workers.append(worker)

    def dismiss(self, dismiss: Any) -> None:
        """End the workers and wait for them; no job may be running."""
        if self.workers and self.pid == os.getpid():
            dismiss(self.address, self.n_threads)
            for worker in self.workers:
                worker.join()
        self.workers = []


class ThreadTeam:
    """N threads that run programs together; the caller's thread is number 0.

    Workers are started with the first job that needs them.  After a fork the child
    has no workers and starts its own.  Workers end when the team is garbage collected,
    and at exit.
    """

    def __init__(self, n_threads: int, library: KernelLibrary) -> None:
        self.n_threads = n_threads
        self._post = library.function(POST, 5)
        self._work = library.function(WORK, 2)
        self._dismiss = library.function(DISMISS, 2)
        self._lock = threading.Lock()
        self._closed = False
        self._new_block()
        _teams.add(self)

    def _new_block(self) -> None:
        self._block = _Block(self.n_threads)
        self._stop_word = self._block.index(TEAM_STOP)
        self._waits_word = self._block.index(TEAM_WAITS)
        self._finalizer = weakref.finalize(self, self._block.dismiss, self._dismiss)
        self._finalizer.atexit = False  # _close_all comes first, while threads can still be joined

    def run(self, table: int, table_bytes: int, n_steps: int, n_threads: int) -> bool:
        """Run one table per thread; False if ``stop`` ended it early.  Raises Interrupted on a closed team."""
        if self._block.pid != os.getpid():
            self._lock = threading.Lock()  # its holder may not exist in the child
            self._finalizer.detach()
            self._new_block()
        with self._lock:
            if self._closed:
                raise Interrupted("the computation was stopped: the model is being closed")
            while len(self._block.workers) < n_threads - 1:
                self._block.start_worker(self._work)
            finished: bool = self._post(self._block.address, table, table_bytes, n_steps, n_threads) == 0
        return finished

    def stop(self) -> None:
        """End the running job at its next barrier; from any thread."""
        self._block.words[self._stop_word] = 1

    def clear_stop(self) -> None:
        """Forget an earlier ``stop``."""
        self._block.words[self._stop_word] = 0

    def long_waits(self) -> int:
        """How often thread 0 yielded its processor at a barrier since the last call."""
        words, at = self._block.words, self._waits_word
        waits = words[at]
        words[at] = 0
        return waits

    def close(self) -> None:
        """Stop a running job, end the workers and wait for them."""
        self._closed = True
        if self._block.pid != os.getpid():
            return
        self.stop()
        with self._lock:
            self._finalizer()


_teams: weakref.WeakSet[ThreadTeam] = weakref.WeakSet()


def _close_all() -> None:
    for team in list(_teams):
        team.close()


# workers run outside the interpreter: they must end before it is torn down
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
