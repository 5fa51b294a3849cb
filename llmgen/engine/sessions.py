"""The sessions of one loaded model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet

from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.engine.sequence_state import Reuse
from llmgen.engine.session import Session
from llmgen.engine.speculation.speculator import Speculation
from llmgen.sampling.params import SamplingParams


class Sessions:
    """Opens sessions, keeps an idle one for the next prompt, and closes at the end those that are still open."""

    def __init__(
        self,
        model: ModelLike,
        tokenizer: Callable[[], TokenizerLike | None],
        params: SamplingParams | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """``params`` are those of calls that bring none; ``speculation`` guesses tokens."""
        self._model = model
        self._tokenizer = tokenizer
        self._params = params
        self._speculation = speculation
        self._open: WeakSet[Session] = WeakSet()
        self._idle: Session | None = None
        self._closed = False
        self._lock = threading.RLock()
        _all.add(self)

    def new(self, reuse: Reuse) -> Session:
        """A session of one's own."""
        return Session(
            self._model,
            self._tokenizer(),
            reuse=reuse,
            params=self._params,
            opened=self._keep_track,
            speculation=self._speculation,
        )

    def _keep_track(self, session: Session) -> None:
        with self._lock:  # another thread may be going through them to close them
            self._open.add(session)

    def take(self) -> Session:
        """A session for one prompt: the idle one, whose cache may begin like it, or a new one."""
        with self._lock:
            session, self._idle = self._idle, None
        return session or self.new("prompt")

    def give_back(self, session: Session) -> None:
        """Keep it for the next prompt, where none is kept yet."""
        with self._lock:
            if self._idle is None and not self._closed:
                self._idle = session
                return
        session.close()

    def close(self) -> None:
        """Close all that are open."""
        with self._lock:
            self._closed = True
            self._idle = None
            still_open = list(self._open)
        for session in still_open:
            session.close()

    def renew_locks(self) -> None:
        """In a forked child: a thread that held a lock did not come along."""
        self._lock = threading.RLock()
        for session in list(self._open):
            session._renew_lock()


_all: WeakSet[Sessions] = WeakSet()


def _renew_locks() -> None:
    for sessions in list(_all):
        sessions.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
