"""Sessions: what they keep of a conversation, and what they need not compute again."""

from __future__ import annotations

import threading
from weakref import WeakSet

import numpy as np
import pytest

from engine.fakes import GREEDY, N_VOCAB, FakeModel, says, session
from llmgen.engine import SamplingParams, Session
from llmgen.engine.sessions import Sessions
from llmgen.engine.stream import GenerationStream
from llmgen.errors import LLMGenError, UsageError


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


def test_of_two_answers_begun_by_two_threads_at_once_one_ends_the_other(monkeypatch):
    s, streams = session(), []
    other = threading.Thread(target=lambda: streams.append(s.stream([4, 5], GREEDY)))

    def made_late(*args):
        if not streams and not other.ident:
            other.start()
            other.join(0.1)  # it waits for its turn; else it would be done
        return GenerationStream(*args)

    monkeypatch.setattr("llmgen.engine.session.GenerationStream", made_late)
    first = s.stream([1, 2], GREEDY)
    other.join()
    with pytest.raises(LLMGenError, match="ended before it was complete by another one"):
        next(first)
    assert streams[0].run().token_ids == session().generate([4, 5], GREEDY).token_ids


def test_no_session_is_added_while_those_that_are_open_are_gone_through():
    sessions = Sessions(FakeModel(), lambda: None)

    class Watched(WeakSet):
        def __iter__(self):
            assert not free()
            return super().__iter__()

        def add(self, item):
            assert not free()
            super().add(item)

    def free():
        """Whether another thread could have its turn."""
        found = []
        thread = threading.Thread(target=lambda: found.append(sessions._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return found[0]

    sessions._open = Watched()
    one = sessions.new("all")
    one.fork()
    sessions.close()
    with pytest.raises(LLMGenError, match="closed"):
        one.generate([1])
