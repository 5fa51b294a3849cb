"""A forked child may use what another thread of its parent was using."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable

import pytest

from engine.fakes import FakeModel, FakeTokenizer
from llmgen.engine import Batch, Request, SamplingParams, Session
from llmgen.engine.sessions import Sessions
from llmgen.engine.stopping import Limits, Watchdog
from program import HANGS_S

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
SHORT = SamplingParams(max_tokens=4, temp=0.0)


def in_a_child(work: Callable[[], bool]) -> int:
    """The exit code of a forked child: 0 where ``work`` is true; it is ended by an alarm where it hangs."""
    import signal

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS_S)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def held(*locks: threading.RLock) -> tuple[threading.Thread, threading.Event]:  # type: ignore[valid-type]
    """A thread that holds some locks until its event is set."""
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()  # type: ignore[attr-defined]
        holding.set()
        done.wait()
        for lock in locks:
            lock.release()  # type: ignore[attr-defined]

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    return thread, done


def test_a_child_takes_its_turn_though_another_thread_had_it() -> None:
    model, tokenizer = FakeModel(), FakeTokenizer()
    session = Session(model, tokenizer)
    expected = Session(model, tokenizer).generate([1, 2, 3], SHORT).token_ids
    sessions = Sessions(model, lambda: tokenizer)
    one = sessions.new("all")

    def work() -> bool:
        if one.generate([1, 2, 3], SHORT).token_ids != expected:
            return False
        alone = session.generate([1, 2, 3], SHORT).token_ids
        kept = sessions.take()
        several = [answer.result for answer in Batch(model, tokenizer).run([Request([1, 2, 3], SHORT)])]
        with_pool = kept.generate([1, 2, 3], SHORT).token_ids
        sessions.give_back(kept)
        sessions.close()
        return alone == expected == with_pool and [r.token_ids for r in several if r] == [expected]

    thread, done = held(model.lock, sessions._lock, one._lock)
    try:
        assert in_a_child(work) == 0
    finally:
        done.set()
        thread.join()
    assert session.generate([1, 2, 3], SHORT).token_ids == expected


def test_a_call_that_another_thread_of_the_parent_makes_stops_none_in_a_child() -> None:
    model, stops, over = FakeModel(), list[bool](), threading.Event()
    model.cancel = lambda: stops.append(True)  # type: ignore[method-assign]
    over.set()
    watchdog, limits = Watchdog(model, over), Limits()
    watchdog.start(limits)
    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: watchdog.call([limits], lambda: (begun.set(), done.wait())))
    thread.start()
    begun.wait()

    def work() -> bool:
        stops.clear()
        watchdog.stop_if_due()
        return not stops

    try:
        watchdog.stop_if_due()
        assert stops
        assert in_a_child(work) == 0
    finally:
        done.set()
        thread.join()
