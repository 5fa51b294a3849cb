"""Ctrl-C while compiled code runs.

Python handles a signal only between two of its own instructions, and a run can take
seconds.  But the C-level handler also writes a byte into a "wakeup" file descriptor
at once.  A small thread waits for that byte and stops the team that the main thread
runs, so that the main thread returns to Python and the handler is called.  Python's own
raises KeyboardInterrupt; if an application's handler raises nothing, the run is repeated.
Runs of other threads are not stopped, because no handler is ever called in them.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Protocol

_RENEW_S = 0.1


class Stoppable(Protocol):
    def stop(self) -> None:
        """End the running job soon; from any thread."""


class _Watcher:
    def __init__(self) -> None:
        self._team: Stoppable | None = None  # the one that the main thread runs
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._renewed = -_RENEW_S

    def watch(self, team: Stoppable | None) -> Stoppable | None:
        """Stop this team at a signal that arrives from now on, if the main thread runs it; returns the team so far.

        An earlier signal, whose handler has been called already, may stop it once too.
        """
        if threading.current_thread() is not threading.main_thread():
            return None
        if team is not None:
            self._listen()
        before, self._team = self._team, team
        return before

    def _listen(self) -> None:
        """Direct signals to the thread below, unless someone else listens (a running asyncio loop, say).

        Renewed for every run, because others (asyncio, prompt_toolkit) reset the
        descriptor when they stop listening, but not for each of many short ones: it takes several system calls.
        """
        now = time.monotonic()
        if now - self._renewed < _RENEW_S:
            return
        self._renewed = now
        if self._sockets is None:
            ours, theirs = socket.socketpair()
            theirs.setblocking(False)
            self._sockets = (ours, theirs)
            threading.Thread(target=self._watch, args=(ours,), name="llmgen-signals", daemon=True).start()
        mine = self._sockets[1].fileno()
        before = signal.set_wakeup_fd(mine, warn_on_full_buffer=False)
        if before not in (-1, mine):
            signal.set_wakeup_fd(before)

    def _watch(self, ours: socket.socket) -> None:
        while True:
            if signal.SIGINT in ours.recv(4096) and (team := self._team):
                team.stop()

    def forget(self) -> None:
        """In a forked child: the sockets belong to the parent."""
        if self._sockets:
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._sockets[1].fileno()):
                signal.set_wakeup_fd(before)
            self._sockets = None
        self._team, self._renewed = None, -_RENEW_S


WATCHER = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCHER.forget)
