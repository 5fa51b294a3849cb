"""Answers that somebody else ends: their reader, Ctrl-C, an error, a callback, a timeout, another thread."""

from __future__ import annotations

import gc
import threading

import pytest

from engine.fakes import GREEDY, NEVER, FakeModel, says, session
from llmgen.engine import SamplingParams, Session
from llmgen.errors import LLMGenError, UsageError
from program import HANGS_S


def test_closing_the_stream_stops_the_work_and_frees_the_session():
    model = FakeModel()
    s = session(model)
    stream = s.stream([1, 2], GREEDY.with_(ignore_eos=True))
    next(stream)
    next(stream)
    stream.close()
    calls = len(model.calls)
    assert stream.result.finish_reason == "interrupted"
    assert len(stream.result.token_ids) == 2
    assert list(stream) == []
    assert len(model.calls) == calls
    assert s.generate([1, 2], GREEDY).finish_reason in ("stop", "length")


def test_breaking_out_and_errors_in_the_consumer():
    model = FakeModel()
    s = session(model)
    for _ in s.stream([1, 2], GREEDY):
        break

    def trip():
        for _ in s.stream([1, 2], GREEDY):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trip()
    ended = []
    stream = s.stream([1, 2], GREEDY)
    stream.on_end(lambda: ended.append(True))
    next(stream)
    gc.disable()
    try:
        del stream  # no cycle: the last reference is enough
        assert ended == [True]
    finally:
        gc.enable()


def test_a_new_generation_ends_the_one_before():
    s = session()
    old = s.stream([1, 2], GREEDY)
    next(old)
    new = s.generate([1, 2], GREEDY)
    assert (old.result.finish_reason, old.result.finish_detail) == ("interrupted", "superseded")
    assert new.finish_reason in ("stop", "length")
    with pytest.raises(LLMGenError, match=r"ended .* by another one in the same session.*fork"):
        next(old)


@pytest.mark.parametrize(
    ("why", "act"), [("rewind", lambda s: s.rewind(1)), ("reset", Session.reset), ("another one", None)]
)
def test_whoever_reads_an_answer_that_something_else_ended_is_told(why, act):
    s = session()

    def read():
        for _ in s.stream([1, 2], GREEDY):
            act(s) if act else s.stream([3])

    with pytest.raises(LLMGenError, match=why):
        read()
    with pytest.raises(LLMGenError, match="in the middle of a step"):
        s.generate([1, 2], GREEDY, callback=lambda event: s.rewind(1))
    reading = s.stream([1, 2], GREEDY)
    next(reading)
    with pytest.raises(UsageError):
        s.generate([])
    assert next(reading).token_id is not None  # what is refused ends nothing
    ended = s.stream([1, 2], GREEDY)
    list(ended)
    s.reset()
    assert list(ended) == []  # it was complete


def test_a_fork_leaves_a_running_answer_alone():
    params = GREEDY.with_(ignore_eos=True)
    whole = session().generate([1, 2], params)
    s = session()
    stream = s.stream([1, 2], params)
    for _ in range(5):
        next(stream)
    twin = s.fork()
    assert twin.tokens == [1, 2, *whole.token_ids[:5]]
    list(stream)
    assert stream.result.token_ids == whole.token_ids
    rest = twin.generate(twin.tokens, params.with_(max_tokens=15))
    assert rest.token_ids == whole.token_ids[5:]


def test_keyboard_interrupt_carries_the_result_and_leaves_the_session_usable():
    model = FakeModel()
    s = session(model)

    def press_at(n):
        def hook():
            if len(model.calls) == n:
                raise KeyboardInterrupt

        return hook

    plain = session().generate([1, 2], GREEDY.with_(ignore_eos=True))
    model.before_call = press_at(4)
    with pytest.raises(KeyboardInterrupt) as caught:
        s.generate([1, 2], GREEDY.with_(ignore_eos=True))
    result = caught.value.result
    assert (result.finish_reason, result.finish_detail) == ("interrupted", "keyboard")
    assert result.token_ids == plain.token_ids[:4]
    model.before_call = None
    assert s.generate([1, 2], GREEDY.with_(ignore_eos=True)).token_ids == plain.token_ids
    model.before_call = press_at(len(model.calls))  # during the prompt
    stream = s.stream([7], GREEDY)
    with pytest.raises(KeyboardInterrupt) as caught:
        list(stream)
    assert caught.value.result is stream.result
    assert (stream.result.completion_tokens, stream.result.timings.prefill_tokens) == (0, 0)


@pytest.mark.parametrize("where", ["callback", "loop in a with block"])
def test_keyboard_interrupt_in_the_callers_own_code(where):
    def press(event):
        if event.token_id == ord("b"):
            raise KeyboardInterrupt

    s = session(FakeModel(script=says("abcd", 1)))
    stream = s.stream([1], GREEDY, callback=press if where == "callback" else None)

    def loop():
        with stream:
            for event in stream:
                press(event)

    with pytest.raises(KeyboardInterrupt) as caught:
        loop()
    assert caught.value.result is stream.result
    assert (stream.result.text, stream.result.finish_detail) == ("ab", "keyboard")


def test_an_error_in_the_middle_keeps_the_text_so_far():
    model = FakeModel(script=says("abcdef", 1))
    s = session(model)

    def fail():
        if len(model.calls) == 3:
            raise MemoryError

    model.before_call = fail
    stream = s.stream([1], GREEDY)
    with pytest.raises(MemoryError):
        list(stream)
    assert stream.result.text == "abc"
    assert stream.result.finish_detail == "error"
    model.before_call = None
    assert s.generate([1], GREEDY).text == "abcdef"


def test_the_callback_gets_the_whole_text():
    """What was held back too: half a character, what might have become a stop string."""
    for text, params in (("aé", {"max_tokens": 2}), ("one EN", {"stop": "END"}), ("ab", {})):
        events = []
        s = session(FakeModel(script=says(text, 1)))
        result = s.generate([1], GREEDY.with_(**params), callback=events.append)
        assert "".join(event.text for event in events) == result.text
        assert [event.result for event in events] == [None] * result.completion_tokens + [result]
    events = []
    stream = s.stream([1], GREEDY.with_(stop="abx"), callback=events.append)
    next(stream)
    stream.close()
    assert [event.text for event in events] == ["", "a"]


def test_a_callback_that_failed_is_left_alone():
    calls = []

    def fail(event):
        calls.append(event)
        raise ZeroDivisionError

    s = session(FakeModel(script=says("ab", 1)))
    stream = s.stream([1], GREEDY, callback=fail)
    with pytest.raises(ZeroDivisionError):
        list(stream)
    assert (len(calls), stream.result.text) == (1, "a")


def test_callback_stops():
    s = session(FakeModel(script=says("abcdef", 1)))
    result = s.generate([1], GREEDY, callback=lambda event: event.text == "c")
    assert (result.text, result.finish_reason, result.finish_detail) == ("abc", "stop", "callback")
    assert s.generate([1], GREEDY, callback=lambda event: 1).text == "a"
    assert s.generate([1], GREEDY, callback=lambda event: 0).text == "abcdef"


def test_timeout_and_cancel_between_tokens_and_in_a_call():
    model = FakeModel()
    s = session(model)
    model.slow_s = NEVER
    result = s.generate([1], GREEDY.with_(timeout=0.2))
    assert (result.finish_reason, result.finish_detail) == ("timeout", "timeout")
    cancel = threading.Event()
    model.at_work.clear()
    threading.Thread(target=lambda: (model.at_work.wait(), cancel.set())).start()
    result = s.generate([1], GREEDY, cancel=cancel)
    assert (result.finish_reason, result.finish_detail) == ("interrupted", "cancel")
    model.slow_s = 0.0
    cancel.clear()
    stream = s.stream([1], GREEDY.with_(ignore_eos=True), cancel=cancel)
    next(stream)
    cancel.set()
    assert next(stream).result.token_ids == stream.result.token_ids


def test_cancelling_one_generation_spares_another_of_the_same_model():
    model = FakeModel(n_ctx=64)
    model.slow_s = 0.005
    cancelled, spared = session(model), session(model)
    results = {}
    cancel = threading.Event()

    endless = GREEDY.with_(ignore_eos=True, max_tokens=10**6, context_full="shift")

    def work(name, s, cancel):
        params = endless if name == "a" else GREEDY.with_(ignore_eos=True)
        results[name] = s.generate([1, 2], params, cancel=cancel)

    threads = [
        threading.Thread(target=work, args=("a", cancelled, cancel)),
        threading.Thread(target=work, args=("b", spared, threading.Event())),
    ]
    for t in threads:
        t.start()
    model.at_work.wait()
    cancel.set()
    for t in threads:
        t.join()
    assert results["a"].finish_reason == "interrupted"
    assert results["b"].finish_reason == "length"


def test_closing_from_another_thread():
    model = FakeModel()
    model.slow_s = NEVER
    s = session(model)
    stream = s.stream([1], GREEDY)
    worker = threading.Thread(target=lambda: list(stream))
    worker.start()
    model.at_work.wait()
    assert stream.close() is False
    worker.join(timeout=HANGS_S)
    assert not worker.is_alive()
    assert stream.result.finish_reason == "interrupted"


def test_closing_just_before_the_model_begins():
    class Model(FakeModel):
        def _work(self, kind, n):
            assert stream.close() is False  # from inside a step, as another thread would
            super()._work(kind, n)  # which forgets earlier stops

    model = Model()
    model.slow_s = NEVER
    stream = session(model).stream([1], GREEDY)
    list(stream)
    assert stream.result.finish_reason == "interrupted"
    assert model.computed == 0


def test_long_prompts_are_computed_in_pieces_and_go_on_after_a_cancel():
    model = FakeModel(n_ctx=5000)
    s = session(model)
    cancel = threading.Event()
    model.before_call = lambda: cancel.set() if len(model.calls) == 1 else None
    ids = [i % 250 for i in range(3000)]
    stopped = s.generate(ids, GREEDY, cancel=cancel)
    assert stopped.completion_tokens == 0
    assert s.cached_tokens == 1024
    assert stopped.timings.prefill_tokens == 1024
    resumed = s.generate(ids, GREEDY).timings
    assert (resumed.cached_tokens, resumed.prefill_tokens) == (1024, 3000 - 1024)


def test_a_report_that_raises_ends_the_answer_and_leaves_the_session_usable():
    def refuse(done, total):
        raise ValueError("enough")

    s = session(FakeModel(n_ctx=4096))
    with pytest.raises(ValueError, match="enough"):
        s.stream([1] * 10, on_prompt=refuse).run()
    assert s.generate([1, 2], SamplingParams(max_tokens=3)).completion_tokens == 3
