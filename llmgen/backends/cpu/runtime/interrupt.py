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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stoppable(Protocol):
    def stop(self) -> None:
        """End the running job soon; from any thread."""


class _Watcher:
    def __init__(self) -> None:
        self._team: Stoppable | None = None  # the one that the main thread runs
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    @contextmanager
    def watching(self, team: Stoppable) -> Iterator[None]:
        """Stop this team at a signal that arrives in the block, if the main thread runs it.

        An earlier signal, whose handler has been called already, may stop it once too.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._listen()
        before, self._team = self._team, team
        try:
            yield
        finally:
            self._team = before

    def _listen(self) -> None:
        """Direct signals to the thread below, unless someone else listens (a running asyncio loop, say).

        Called before every run, because others (asyncio, prompt_toolkit) reset the
        descriptor when they stop listening.
        """
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
        self._team = None


WATCHER = _Watcher()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WATCHER.forget)
