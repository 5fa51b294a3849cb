"""How an answer ends by itself: a token, a text, a number of tokens, a full context."""

from __future__ import annotations

import pytest

from engine.fakes import EOG, GREEDY, FakeModel, FakeTokenizer, says, session
from llmgen.engine import Session
from llmgen.errors import ContextFullError


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
