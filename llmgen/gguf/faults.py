"""An error message for when a mapped model file is truncated, or its disk fails, while in use.

Touching a page that is gone raises SIGBUS, which ends a process silently.  A handler in
Python would never run, since the faulting instruction is repeated before the interpreter
gets control; this one is called by the system itself, in the thread of the fault.  It
prints a message; then the process ends as it would have.
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
"""Bytes, more than ``struct sigaction`` has on any system; it begins with the handler's address."""


class Mapped(Protocol):
    """A file in memory."""

    path: Any

    def is_cut_short(self) -> bool:
        """Whether the file on disk has become shorter than what is mapped."""


_files: weakref.WeakSet[Mapped] = weakref.WeakSet()
_kept: list[Any] = []  # the handler must not be collected


def watch(file: Mapped) -> None:
    """Print an explanation to stderr if this file's pages are lost, unless the program handles SIGBUS itself."""
    _files.add(file)
    explain_lost_pages()


def explain_lost_pages(exit_code: int | None = None) -> None:
    """From now on, print an explanation to stderr before a lost page of a mapped file ends the process.

    The process ends by the signal, as before, or with ``exit_code``.  A handler that the
    program, its fault handler or anything else has installed is left alone.
    """
    if _kept or not hasattr(signal, "SIGBUS") or not _is_default():
        return

    told = threading.Lock()

    def explain(number: int) -> None:
        if not told.acquire(blocking=False):
            return  # another thread is reporting its own lost page; this one faults again until the process ends
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
    """Whether nothing handles SIGBUS; the signal module knows only handlers in Python."""
    action = (ctypes.c_void_p * (_ROOM // ctypes.sizeof(ctypes.c_void_p)))()
    failed = ctypes.CDLL(None).sigaction(int(signal.SIGBUS), None, ctypes.byref(action))
    return not failed and not action[0]


def _sentence() -> bytes:
    start = "\n" if os.isatty(1) and os.isatty(2) else ""  # an answer may be on the current line
    cut = next((file for file in _files if file.is_cut_short()), None)
    if cut is None:
        what = "a file in use, perhaps a model, can no longer be read; check the disk"
    else:
        name = shown(str(cut.path), _LONGEST_PATH, quote=False)
        what = f"the model file {name} was cut short while it was in use; leave it alone while it is running"
    return f"{start}error: {what}\n".encode("utf-8", "backslashreplace")
