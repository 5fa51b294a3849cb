"""What Ctrl-C does to an answer of ``chat``, at the moments that a terminal test cannot choose."""

from __future__ import annotations

import signal

import pytest

from llmgen.cli.common.interrupts import noted


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_noted_and_does_not_raise() -> None:
    before = signal.getsignal(signal.SIGINT)
    with noted() as stop:
        assert not stop.is_set()
        press()
        press()
        assert stop.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_one_ends_what_asks_nobody() -> None:
    with noted() as stop:
        with stop.raising_when_repeated():
            press()
            assert stop.is_set()
            with pytest.raises(KeyboardInterrupt):
                press()
        press()  # later work asks
