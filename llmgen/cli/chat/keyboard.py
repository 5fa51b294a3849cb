"""The terminal's keyboard while the editor does not have it.

What is typed while an answer comes would appear in the middle of it; so it waits, unseen,
for the next message.  Ctrl-C is a signal only within :func:`signals`, where somebody waits
for it: the editor, as it goes, would lose one.  One that came earlier is found among the keys.
What was typed after the last message belongs to the shell, which gets the terminal as it was,
also while the program is stopped with Ctrl-Z.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

_MOST_READS = 1000  # of a kilobyte; a terminal that is gone is always ready to be read

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding.key_processor import KeyPress


def keep_keys(source: Input, interrupt: Callable[[], None]) -> None:
    """Take what was typed so far, so that the terminal has room for more."""
    from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
    from prompt_toolkit.keys import Keys

    keys = [*get_typeahead(source), *_typed(source)]
    others = [press for press in keys if press.key != Keys.ControlC]
    if len(others) < len(keys):
        interrupt()
    store_typeahead(source, others)


def _typed(source: Input) -> list[KeyPress]:
    """The keys that are there, without waiting."""
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
    """A terminal that shows no keys and changes none.  The editor takes it from here and gives it back so."""
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
    """Let whoever reads the terminal next have what was typed and not used, where the system allows that."""
    from prompt_toolkit.input.typeahead import get_typeahead

    typed = "".join(press.data for press in get_typeahead(source)).replace("\r", "\n").encode()
    if not typed or sys.platform == "win32":
        return
    import fcntl
    import termios

    keyboard = sys.stdin.fileno()
    with suppress(OSError):
        fcntl.ioctl(
            keyboard, termios.TIOCSTI, typed[:1]
        )  # fails where it is forbidden, and nothing is lost then
        waiting = _read_all(keyboard)  # what came later must stay behind it
        for byte in typed + waiting[:-1]:
            fcntl.ioctl(keyboard, termios.TIOCSTI, bytes([byte]))


def _read_all(keyboard: int) -> bytes:
    """What is there to read, without waiting."""
    import select

    data = b""
    for _ in range(_MOST_READS):
        if not select.select([keyboard], [], [], 0)[0]:
            break
        data += os.read(keyboard, 1024)
    return data


@contextmanager
def _lent_while_stopped(mode: list[Any]) -> Iterator[None]:
    """Ctrl-Z within gives the terminal back in this mode, until the program goes on."""
    import termios

    def stop(*_: Any) -> None:
        keyboard = sys.stdin.fileno()
        ours = termios.tcgetattr(keyboard)
        termios.tcsetattr(keyboard, termios.TCSANOW, mode)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)
        termios.tcsetattr(keyboard, termios.TCSANOW, ours)

    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:  # the caller wants no stops
        yield
        return
    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


@contextmanager
def signals() -> Iterator[None]:
    """Ctrl-C makes a signal within."""
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
    """The terminal's attributes, which are put back at the end."""
    import termios

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        yield termios.tcgetattr(keyboard)
    finally:
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
