"""Ctrl-C while compiled code runs.

Python handles a signal only between two of its own instructions, and a run can take
seconds.  But the C-level handler also writes a byte into a "wakeup" file descriptor
at once; a small thread waits for that byte and stops the running teams, so that the
main thread comes back to Python and raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
from typing import Protocol


class Stoppable(Protocol):
    def stop(self) -> None:
        """End the running job soon; from any thread."""


class _Watcher:
    def __init__(self) -> None:
        self._running: set[Stoppable] = set()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._lock = threading.RLock()  # held from reading a signal to having stopped the teams

    def install(self) -> None:
        """Listen; only from the main thread, and only while nobody else (a running asyncio loop, say) does.

        Called before every run: whoever listened in between (asyncio, prompt_toolkit)
        leaves nothing behind when he goes.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sockets is None:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            self._sockets = (ours, theirs)
            threading.Thread(target=self._watch, args=(ours,), name="llmgen-signals", daemon=True).start()
        mine = self._sockets[1].fileno()
        before = signal.set_wakeup_fd(mine, warn_on_full_buffer=False)
        if before not in (-1, mine):
            signal.set_wakeup_fd(before)

    def _watch(self, ours: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            self._wait(selector, ours)

    def _wait(self, selector: selectors.BaseSelector, ours: socket.socket) -> None:
        while True:
            selector.select()
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
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._sockets[1].fileno()):
                signal.set_wakeup_fd(before)
            self._sockets = None
        self._running = set()
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
