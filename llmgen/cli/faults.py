"""A model file that is cut short, or on a disk that fails, while it is mapped.

Touching a page that is gone raises SIGBUS, which ends a process without a word.  A
handler in Python would never run, since the faulty instruction is repeated before the
interpreter gets its turn; this one is called by the system itself, in whatever thread
the fault happened, says what happened, and leaves at once.
"""

from __future__ import annotations

import os
import signal
from typing import Any

_SENTENCE = (
    b"error: the model file was cut short, or cannot be read any more, while it was in use; "
    b"leave it alone while it is running, or check the disk\n"
)
_kept: list[Any] = []  # the handler must not be collected


def explain_lost_pages() -> None:
    """From here on, a lost page of a mapped file ends the program with a sentence and exit code 1."""
    import ctypes
    import faulthandler

    if not hasattr(signal, "SIGBUS") or faulthandler.is_enabled() or _kept:
        return
    start = b"\n" if os.isatty(1) and os.isatty(2) else b""  # an answer may be on the line

    def leave(number: int) -> None:
        try:
            os.write(2, start + _SENTENCE)
        finally:
            os._exit(1)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(leave)
    install = ctypes.CDLL(None).signal
    install.argtypes, install.restype = [ctypes.c_int, type(handler)], ctypes.c_void_p
    install(signal.SIGBUS, handler)
    _kept.append(handler)
