"""What happens when a mapped model file is cut short, or its disk fails, while it is read.

Touching a page that is gone raises SIGBUS, which ends a process without a word.  A
handler in Python would never run, since the faulty instruction is repeated before the
interpreter gets its turn; this one is called by the system itself, in whatever thread
the fault happened.  It says what happened; then the process ends, as it would have.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import weakref
from typing import Any, Protocol

from llmgen.errors import shown

_LONGEST_PATH = 500
_ROOM = 512
"""Bytes, more than ``struct sigaction`` has anywhere; it begins with the handler's address."""


class Mapped(Protocol):
    """A file in memory."""

    path: Any

    def is_cut_short(self) -> bool:
        """Whether the file on disk has become shorter than what is mapped."""


_files: weakref.WeakSet[Mapped] = weakref.WeakSet()
_kept: list[Any] = []  # the handler must not be collected


def watch(file: Mapped) -> None:
    """Explain it on stderr when this file's pages are lost, unless the program handles SIGBUS itself."""
    _files.add(file)
    explain_lost_pages()


def explain_lost_pages(exit_code: int | None = None) -> None:
    """From here on, a lost page of a mapped file is explained on stderr before the process ends.

    It ends by the signal, as without this, or with ``exit_code``.  Where the program, its
    fault handler or anything else has a handler of its own, that one stays the only one.
    """
    if _kept or not hasattr(signal, "SIGBUS") or not _is_default():
        return

    told = threading.Lock()

    def explain(number: int) -> None:
        if not told.acquire(blocking=False):
            return  # another thread has lost a page too, and is telling it; this one faults again until the end
        try:
            os.write(2, _sentence())
        finally:
            if exit_code is not None:
                os._exit(exit_code)
            install(signal.SIGBUS, ctypes.cast(0, type(handler)))  # and the fault happens again

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = [ctypes.c_int, type(handler)], ctypes.c_void_p
    _kept.append(handler)
    install(signal.SIGBUS, handler)


def _is_default() -> bool:
    """Whether nobody handles SIGBUS; Python's own books know only of handlers in Python."""
    action = (ctypes.c_void_p * (_ROOM // ctypes.sizeof(ctypes.c_void_p)))()
    failed = ctypes.CDLL(None).sigaction(int(signal.SIGBUS), None, ctypes.byref(action))
    return not failed and not action[0]


def _sentence() -> bytes:
    start = "\n" if os.isatty(1) and os.isatty(2) else ""  # an answer may be on the line
    cut = next((file for file in _files if file.is_cut_short()), None)
    if cut is None:
        what = "a file that is in use, perhaps a model, cannot be read any more; check the disk"
    else:
        name = shown(str(cut.path), _LONGEST_PATH, quote=False)
        what = f"the model file {name} was cut short while it was in use; leave it alone while it is running"
    return f"{start}error: {what}\n".encode("utf-8", "backslashreplace")
