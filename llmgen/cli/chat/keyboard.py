"""The terminal's keyboard while the editor is not running.

Keys typed during an answer would appear in the middle of it, so they are hidden and kept for
the next message.  Ctrl-C is a signal only within :func:`signals`, where it is handled; while
the editor starts or ends, one would be lost.  An earlier Ctrl-C is found among the keys.
What was typed after the last message is left to the shell, which gets the terminal back in
its old mode, also while the program is stopped with Ctrl-Z.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

_MOST_READS = 1000  # of a kilobyte; a terminal that is gone always counts as readable

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding.key_processor import KeyPress


def keep_keys(source: Input, interrupt: Callable[[], None]) -> None:
    """Read what has been typed, so that the terminal's buffer does not fill up."""
    from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
    from prompt_toolkit.keys import Keys

    keys = [*get_typeahead(source), *_typed(source)]
    others = [press for press in keys if press.key != Keys.ControlC]
    if len(others) < len(keys):
        interrupt()
    store_typeahead(source, others)


def _typed(source: Input) -> list[KeyPress]:
    """The keys that were typed, without waiting."""
    if sys.platform == "win32":
        return []
    import select

    keys: list[KeyPress] = []
    for _ in range(_MOST_READS):
        if source.closed or not select.select([source.fileno()], [], [], 0)[0]:
            break
        keys += source.read_keys()
    return keys


@contextmanager
def quiet_terminal() -> Iterator[None]:
    """A terminal that neither echoes nor interprets keys; the editor takes it over and returns it like this."""
    if sys.platform == "win32":
        yield
        return
    import termios

    with _changed() as mode, _lent_while_stopped(termios.tcgetattr(sys.stdin.fileno())):
        mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        mode[3] = mode[3] & ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG) | termios.NOFLSH
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, mode)
        yield


def give_back_keys(source: Input) -> None:
    """Give unused typed text back to the terminal, for its next reader, if the system allows it."""
    from prompt_toolkit.input.typeahead import get_typeahead

    typed = "".join(press.data for press in get_typeahead(source)).replace("\r", "\n").encode()
    if not typed or sys.platform == "win32":
        return
    import fcntl
    import termios

    keyboard = sys.stdin.fileno()
    with suppress(OSError):
        fcntl.ioctl(keyboard, termios.TIOCSTI, typed[:1])  # fails if it is forbidden, before anything is lost
        waiting = _read_all(keyboard)  # what came later must stay after it
        for byte in typed + waiting[:-1]:
            fcntl.ioctl(keyboard, termios.TIOCSTI, bytes([byte]))


def _read_all(keyboard: int) -> bytes:
    """All pending input, without waiting."""
    import select

    data = b""
    for _ in range(_MOST_READS):
        if not select.select([keyboard], [], [], 0)[0]:
            break
        data += os.read(keyboard, 1024)
    return data


@contextmanager
def _lent_while_stopped(mode: list[Any]) -> Iterator[None]:
    """On Ctrl-Z within, the terminal gets this mode until the program continues."""
    import termios

    def stop(*_: Any) -> None:
        keyboard = sys.stdin.fileno()
        ours = termios.tcgetattr(keyboard)
        termios.tcsetattr(keyboard, termios.TCSANOW, mode)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)
        termios.tcsetattr(keyboard, termios.TCSANOW, ours)

    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:  # the caller does not want to be stopped
        yield
        return
    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


@contextmanager
def signals() -> Iterator[None]:
    """Make Ctrl-C a signal within."""
    if sys.platform == "win32":
        yield
        return
    import termios

    with _changed() as mode:
        mode[3] |= termios.ISIG
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, mode)
        yield


@contextmanager
def _changed() -> Iterator[list[Any]]:
    """A copy of the terminal's attributes, which are restored at the end."""
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        yield termios.tcgetattr(keyboard)
    finally:
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
