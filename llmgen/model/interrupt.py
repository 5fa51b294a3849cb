"""Ctrl-C while compiled code runs.

Python handles a signal only between two of its own instructions, and a run can take
seconds.  But the C-level handler also writes a byte into a "wakeup" file descriptor
at once; a small thread waits for that byte and stops the running teams, so that the
main thread comes back to Python and raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import select
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
        self._lock = threading.RLock()  # held from reading a signal to having stopped the teams

    def install(self) -> None:
        """Start listening; only from the main thread, and only if nobody else (asyncio, say) listens."""
        if self._sockets or threading.current_thread() is not threading.main_thread():
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
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
        while True:
            select.select([ours], [], [])
            with self._lock:
                if signal.SIGINT in _read(ours):
                    for team in list(self._running):
                        team.stop()

    def drain(self) -> None:
        """Before a call: the main thread forgets signals from before, for which Python raises by itself.

        Otherwise a watcher that wakes up late would stop the next call instead.
        """
        if self._sockets and threading.current_thread() is threading.main_thread():
            with self._lock:
                _read(self._sockets[0])

    def forget(self) -> None:
        """In a forked child: the sockets belong to the parent."""
        if self._sockets:
            signal.set_wakeup_fd(-1)
            self._sockets = None
        self._running = weakref.WeakSet()
        self._lock = threading.RLock()

    def add(self, team: Stoppable) -> None:
        self._running.add(team)

    def remove(self, team: Stoppable) -> None:
        self._running.discard(team)


def _read(ours: socket.socket) -> bytes:
    """The numbers of the signals that have come, possibly none."""
    try:
        return ours.recv(4096)
    except BlockingIOError:
        return b""


WATCHER = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCHER.forget)
