from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from engine.fakes import EOG, N_VOCAB, FakeModel, FakeTokenizer, says
from llmgen.engine import SamplingParams, Session
from llmgen.errors import ContextFullError, LLMGenError, UsageError

GREEDY = SamplingParams(temp=0.0, max_tokens=20)
NEVER = 600.0  # seconds of a call that ends only when it is stopped


def session(model=None, **kw):
    return Session(model or FakeModel(), FakeTokenizer(), **kw)


def test_ends_at_end_of_generation_and_says_so():
    s = session(FakeModel(script=says("hello", 3)))
    result = s.generate([1, 2, 3], GREEDY)
    assert result.text == "hello"
    assert bytes(result.token_ids) == b"hello"
    assert (result.finish_reason, result.finish_detail, result.matched) == ("stop", "eog", EOG)
    assert (result.prompt_tokens, result.completion_tokens) == (3, 5)
    assert result.timings.prefill_tokens == 3
    assert result.timings.decode_steps == 5
    assert result.timings.ttft_s > 0
    assert result.as_dict()["token_ids"] == list(b"hello")


def test_max_tokens():
    s = session()
    result = s.generate([5], GREEDY.with_(max_tokens=4))
    assert result.completion_tokens == 4
    assert (result.finish_reason, result.finish_detail) == ("length", "max_tokens")
    assert result.timings.decode_steps == 3
    nothing = s.generate([5], GREEDY.with_(max_tokens=0))
    assert (nothing.text, nothing.finish_reason, nothing.token_ids) == ("", "length", ())


def test_events_carry_text_and_token_and_a_last_one_the_result():
    s = session(FakeModel(script=says("aé!", 1)))
    events = list(s.stream([1], GREEDY))
    assert [e.token_id for e in events] == [*"aé!".encode(), None]
    assert [e.text for e in events] == ["a", "", "é", "!", ""]
    assert events[-1].finish_reason == "stop"
    assert [e.finish_reason for e in events[:-1]] == [None] * 4


def test_the_tail_of_a_character_is_flushed_at_every_ending():
    s = session(FakeModel(script=says("é", 1)))
    result = s.generate([1], GREEDY.with_(max_tokens=1))
    assert result.text == "\ufffd"


def test_stop_strings_across_tokens():
    s = session(FakeModel(script=says("one END two", 1)))
    events = list(s.stream([1], GREEDY.with_(stop=("END", "zzz"))))
    result = events[-1].result
    assert result.text == "".join(e.text for e in events) == "one "
    assert (result.finish_reason, result.finish_detail, result.matched) == ("stop", "stop_string", "END")
    held = s.generate([1], GREEDY.with_(stop=("two!",)))
    assert held.text == "one END two"  # what was held back comes out


@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("<257>", [*b"ab", 257, *b"cd"], "ab"),
        ("<257>\nuser", [*b"ab", 257, *b"\nuser", 257], "ab"),
        ("b<257>", [*b"a", 257, *b"b", 257, *b"cd"], "a"),
        ("<257>", [*b"a<257>b"], "a"),  # spelled out in letters
        ("<257><258>", [257, *b"a", 258, 257, 258, *b"b"], "a"),
    ],
)
def test_a_stop_string_that_spells_control_tokens(stop, tokens, text):
    model = FakeModel(script=lambda history: [*tokens, EOG][len(history) - 1])
    events = list(session(model).stream([1], GREEDY.with_(stop=stop)))
    result = events[-1].result
    assert result.text == "".join(event.text for event in events) == text
    assert (result.finish_detail, result.matched) == ("stop_string", stop)


def test_what_is_held_back_for_a_control_token_comes_out_without_it():
    model = FakeModel(script=lambda history: [*b"ab", 257, *b"us", EOG][len(history) - 1])
    result = session(model).generate([1], GREEDY.with_(stop="<257>user"))
    assert (result.text, result.finish_detail) == ("abus", "eog")


def test_stop_token_ids_and_ignore_eos():
    s = session(FakeModel(script=says("ab", 1)))
    result = s.generate([1], GREEDY.with_(stop_token_ids=(ord("b"),)))
    assert (result.text, result.finish_detail, result.matched) == ("a", "stop_token", ord("b"))
    free = s.generate([1], GREEDY.with_(ignore_eos=True))
    assert free.finish_reason == "length"
    assert EOG not in free.token_ids


def test_min_tokens_masks_the_endings():
    s = session(FakeModel(script=says("", 1)))
    result = s.generate([1], GREEDY.with_(min_tokens=3))
    assert result.completion_tokens == 3
    assert result.finish_detail == "eog"


def test_context_full():
    s = session(FakeModel(n_ctx=8))
    result = s.generate([1, 2, 3], GREEDY.with_(ignore_eos=True))
    assert (result.finish_reason, result.finish_detail) == ("length", "context_full")
    assert result.completion_tokens == 6  # 3 + 5 in the cache, and the one sampled last
    last = s.generate(range(8), GREEDY)
    assert last.completion_tokens == 1
    with pytest.raises(ContextFullError, match=r"9 tokens.* holds 8.*--ctx"):
        s.stream(range(9), GREEDY)


def test_context_shift_keeps_the_first_and_the_newest():
    model = FakeModel(n_ctx=16)
    s = session(model)
    params = GREEDY.with_(ignore_eos=True, context_full="shift", context_keep=4, max_tokens=40)
    result = s.generate(range(10), params)
    assert result.completion_tokens == 40
    assert s.tokens[:4] == [0, 1, 2, 3]
    assert s.cached_tokens == len(s.tokens) - 1
    tail = s.tokens[4:]
    assert 0 < len(tail) <= 13
    assert tail == list(result.token_ids)[-len(tail) :]


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_context_shift_keeps_begin_of_text(keep):
    """A model that wants it is lost without it; one that does not has no such token."""
    wants = FakeTokenizer()
    wants.bos_id, wants.add_bos = 7, True
    params = GREEDY.with_(ignore_eos=True, context_full="shift", context_keep=keep, max_tokens=60)
    s = Session(FakeModel(n_ctx=16), wants)
    s.generate([7, 1, 2, 3], params)
    assert s.tokens[: max(keep, 1)] == [7, 1, 2][: max(keep, 1)]
    for tokenizer, prompt in ((wants, [8, 1]), (FakeTokenizer(), [7, 1])):
        other = Session(FakeModel(n_ctx=16), tokenizer)
        result = other.generate(prompt, params.with_(context_keep=0))
        assert other.tokens == list(result.token_ids)[-len(other.tokens) :]


def test_prompt_that_cannot_be_used():
    s = session()
    with pytest.raises(UsageError, match="no tokens"):
        s.stream([])
    with pytest.raises(UsageError, match=f"token {N_VOCAB}"):
        s.stream([N_VOCAB])
    with pytest.raises(UsageError, match="token -1"):
        s.stream([-1])
    for wrong in ([1.5], ["a"], [None], 7):
        with pytest.raises(UsageError, match="whole numbers"):
            s.stream(wrong)
    with pytest.raises(UsageError, match="not bytes"):
        s.stream(b"text")
    assert s.generate(np.array([1, 2], np.uint8), GREEDY).prompt_tokens == 2


def test_prefix_reuse_computes_only_what_is_new():
    model = FakeModel()
    s = session(model)
    first = s.generate([1, 2, 3, 4], GREEDY.with_(ignore_eos=True))
    conversation = [1, 2, 3, 4, *first.token_ids, 9, 9]
    second = s.generate(conversation, GREEDY)
    # all but the last generated token were in the cache
    assert second.timings.cached_tokens == 4 + first.completion_tokens - 1
    assert second.timings.prefill_tokens == 3
    assert second.token_ids == session().generate(conversation, GREEDY).token_ids
    again = s.generate(conversation, GREEDY)
    assert again.timings.prefill_tokens == 1
    assert again.token_ids == second.token_ids
    other = s.generate([1, 2, 9], GREEDY)
    assert other.timings.cached_tokens == 2


def test_reuse_of_prompt_only_and_of_nothing():
    careful = session(reuse="prompt")
    first = careful.generate([1, 2, 3, 4], GREEDY.with_(ignore_eos=True))
    second = careful.generate([1, 2, 3, 4, *first.token_ids, 9], GREEDY)
    assert second.timings.cached_tokens == 4
    third = careful.generate([1, 2, 3, 4, *first.token_ids, 9], GREEDY)
    assert third.timings.prefill_tokens == 1
    never = session(reuse="none")
    never.generate([1, 2, 3], GREEDY)
    assert never.generate([1, 2, 3], GREEDY).timings.cached_tokens == 0


def test_reuse_respects_what_the_cache_can_be_cut_back_to():
    model = FakeModel()
    model.min_truncate = 6
    s = session(model)
    s.generate([1, 2, 3, 4], GREEDY.with_(ignore_eos=True, max_tokens=4))
    assert s.generate([1, 2, 3, 4], GREEDY).timings.cached_tokens == 0


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


@pytest.mark.parametrize(
    ("ending", "detail"),
    [("max_tokens", "max_tokens"), ("stop", "stop_string"), ("callback", "callback"), ("left", "closed")],
)
def test_tokens_are_the_prompt_and_every_token_generated(ending, detail):
    """So that the same text goes on where it ended, as if it had not."""
    s = session(FakeModel(script=says("abcdefgh", 2)))
    params = GREEDY.with_(
        max_tokens=3 if ending == "max_tokens" else 100, stop="bc" if ending == "stop" else ()
    )
    stream = s.stream([1, 2], params, callback=lambda e: ending == "callback" and e.token_id == ord("c"))
    for event in stream:
        if ending == "left" and event.token_id == ord("c"):
            break
    stream.close()
    assert stream.result.finish_detail == detail
    assert bytes(stream.result.token_ids) == b"abc"
    assert s.tokens == [1, 2, *b"abc"]
    assert s.cached_tokens == 4
    assert s.fork().tokens == s.tokens
    more = s.generate(s.tokens, GREEDY)
    assert more.text == "defgh"
    assert more.timings.prefill_tokens == 1
    s.rewind(len(more.token_ids))
    assert s.tokens == [1, 2, *b"abc"]


def test_the_text_of_a_stream_is_what_its_events_gave():
    """Also before the last event, though the step that gives the last token knows the rest already."""
    s = session(FakeModel(script=says("h\u00e9".encode()[:2], 2)))
    stream = s.stream([1, 2], GREEDY.with_(max_tokens=2))
    given = ""
    for event in stream:
        given += event.text
        assert stream.text == given
    assert given == "h\ufffd"


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
    worker.join(timeout=60)
    assert not worker.is_alive()
    assert stream.result.finish_reason == "interrupted"


def test_closing_just_before_the_model_begins():
    class Model(FakeModel):
        def _work(self, kind, n):
            assert stream.close() is False  # from inside a step, as another thread would
            super()._work(kind, n)  # which forgets earlier stops

    model = Model()
    model.slow_s = 60.0
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


def test_a_long_prompt_reports_how_much_of_it_is_computed():
    model, seen = FakeModel(n_ctx=4096), []
    s = session(model)
    prompt = [1] * 1500
    stream = s.stream(prompt, SamplingParams(max_tokens=1), on_prompt=lambda *at: seen.append(at))
    assert seen == []
    stream.run()
    assert seen == [(0, 1500), (512, 1500), (1024, 1500), (1500, 1500)]
    seen.clear()
    s.stream([*prompt, 2, 3], SamplingParams(max_tokens=1), on_prompt=lambda *at: seen.append(at)).run()
    assert seen == [(1500, 1502), (1502, 1502)]


def test_a_report_that_raises_ends_the_answer_and_leaves_the_session_usable():
    def refuse(done, total):
        raise ValueError("enough")

    s = session(FakeModel(n_ctx=4096))
    with pytest.raises(ValueError, match="enough"):
        s.stream([1] * 10, on_prompt=refuse).run()
    assert s.generate([1, 2], SamplingParams(max_tokens=3)).completion_tokens == 3


def test_rewind_fork_reset_close():
    model = FakeModel()
    s = session(model)
    result = s.generate([1, 2, 3], GREEDY.with_(ignore_eos=True, max_tokens=5))
    assert s.tokens == [1, 2, 3, *result.token_ids]
    twin = s.fork()
    s.rewind(4)
    assert s.tokens == [1, 2, 3, result.token_ids[0]]
    assert s.cached_tokens == 4
    assert len(twin.tokens) == 8
    assert twin.generate([*twin.tokens, 9], GREEDY).timings.prefill_tokens == 2
    s.rewind(100)
    assert s.tokens == []
    with pytest.raises(UsageError):
        s.rewind(-1)
    s.reset()
    assert s.generate([1, 2, 3], GREEDY).timings.prefill_tokens == 3
    s.close()
    s.close()
    with pytest.raises(LLMGenError, match="closed"):
        s.generate([1])
    twin.close()


def test_same_seed_same_text():
    params = SamplingParams(seed=7, max_tokens=30, temp=1.5, top_k=0, top_p=1, min_p=0, ignore_eos=True)
    first = session().generate([1, 2], params)
    assert session().generate([1, 2], params).token_ids == first.token_ids
    assert session().generate([1, 2], params.with_(seed=8)).token_ids != first.token_ids
    random = session().generate([1, 2], params.with_(seed=None))
    assert session().generate([1, 2], params.with_(seed=random.seed)).token_ids == random.token_ids


def test_without_a_tokenizer():
    s = Session(FakeModel())
    result = s.generate([1, 2], GREEDY)
    assert result.text == ""
    assert result.completion_tokens == 20
    with pytest.raises(UsageError, match="stop"):
        s.generate([1, 2], GREEDY.with_(stop="x"))
