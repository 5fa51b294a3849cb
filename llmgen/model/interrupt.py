"""Ctrl-C while compiled code runs.

Python handles a signal only between two of its own instructions, and a run can take
seconds.  But the C-level handler also writes a byte into a "wakeup" file descriptor
at once; a small thread waits for that byte and stops the running teams, so that the
main thread comes back to Python and raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import weakref
from typing import Protocol


class Stoppable(Protocol):
    def stop(self) -> None:
        """End the running job soon; from any thread."""


class _Watcher:
    def __init__(self) -> None:
        self._running: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def install(self) -> None:
        """Start listening; only from the main thread, and only if nobody else (asyncio, say) listens."""
        if self._sockets or threading.current_thread() is not threading.main_thread():
            return
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            ours.close()
            theirs.close()
            return
        self._sockets = (ours, theirs)
        threading.Thread(target=self._watch, args=(ours,), name="llmgen-signals", daemon=True).start()

    def _watch(self, ours: socket.socket) -> None:
        while data := ours.recv(16):
            if signal.SIGINT in data:
                for team in list(self._running):
                    team.stop()

    def forget(self) -> None:
        """In a forked child: the sockets belong to the parent."""
        if self._sockets:
            signal.set_wakeup_fd(-1)
            self._sockets = None
        self._running = weakref.WeakSet()

    def add(self, team: Stoppable) -> None:
        self._running.add(team)

    def remove(self, team: Stoppable) -> None:
        self._running.discard(team)


WATCHER = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCHER.forget)
