"""The keys that are pressed while an answer comes.

The editor leaves the terminal when a message is sent, and what is typed then would appear
in the middle of the answer.  Here it waits, unseen, for the next message.  A Ctrl-C that
came before the terminal made a signal of it is found among the keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

_MOST_READS = 1000  # of a kilobyte; a terminal that is gone is always ready to be read

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding.key_processor import KeyPress


@contextmanager
def waiting_keys(source: Input, interrupt: Callable[[], None]) -> Iterator[None]:
    """Keys that come within are kept for the next prompt; ``interrupt`` is called for a Ctrl-C among them."""
    with _unseen(source):
        # Only now: from here on a Ctrl-C is a signal, and what came before it is here to be read.
        keep_keys(source, interrupt)
        yield
        keep_keys(source, interrupt)


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
def _unseen(source: Input) -> Iterator[None]:
    """A terminal that shows no keys and changes none, but makes a signal of Ctrl-C."""
    if sys.platform == "win32":
        yield
        return
    import termios

    try:
        before = termios.tcgetattr(source.fileno())
    except (termios.error, ValueError):  # no terminal, or one that is gone
        yield
        return
    mode = termios.tcgetattr(source.fileno())
    mode[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
    mode[3] = mode[3] & ~(termios.ECHO | termios.ICANON | termios.IEXTEN) | termios.ISIG | termios.NOFLSH
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(source.fileno(), termios.TCSANOW, mode)
    try:
        yield
    finally:
        try:
            termios.tcsetattr(source.fileno(), termios.TCSANOW, before)
        except termios.error:
            pass
