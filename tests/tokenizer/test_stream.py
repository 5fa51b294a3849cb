"""From ids to text: whole characters, and the same text however it is cut."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.errors import TokenizerError
from llmgen.tokenizer import Tokenizer
from shared import shared
from vocabularies import byte_level, spm

BYTE = 3  # the id of <0x00> in spm()


@cache
def _vocabulary(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(shared(f"tokenizers/ggml-vocab-{name}.gguf"))


def streamed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> str:
    decoder = tokenizer.stream_decoder(**options)
    return "".join([*(decoder.push(id) for id in ids), decoder.finish()])


def test_half_a_character_waits_for_the_other_half() -> None:
    tokenizer = spm("a")
    decoder = tokenizer.stream_decoder()
    snowman = [BYTE + byte for byte in "\u2603".encode()]
    assert [decoder.push(id) for id in snowman] == ["", "", "\u2603"]
    assert decoder.push(snowman[0]) == ""
    assert decoder.finish() == "\ufffd"


def test_marks_of_thoughts_are_text_though_they_are_control_tokens() -> None:
    tokenizer = byte_level(control=("<think>", "</think>", "[THINK]", "<|im_end|>"))
    ids = tokenizer.encode("<think>a</think>b[THINK]<|im_end|>", parse_special=True)
    assert len(ids) == 6
    assert streamed(tokenizer, ids, skip_special=True, continuation=True) == "<think>a</think>b[THINK]"
    assert tokenizer.is_control(ids[0])  # in a message it is data all the same
    assert "<think>" in tokenizer.guarded_spellings


@pytest.mark.parametrize(
    "mark",
    [
        "[TOOL_CALLS]",  # Mistral
        "<tool_call>",  # Qwen, GLM and many others
        "<|tool_call_start|>",  # LFM 2
        "<|tool_calls_section_begin|>",  # Kimi
        "<|tool_call_argument_begin|>",
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",  # DeepSeek
        "<\uff5ctool\u2581sep\uff5c>",
        "<|START_ACTION|>",  # Cohere
        "<|tool_call>",  # Gemma 4
        "<|tool_call:begin|>",  # Solar
        "<tool_calls:opensource>",  # Hunyuan 3
        "<|tools_prefix|>",  # Apertus
        "<|python_tag|>",  # Llama 3
        "<|channel>",  # Gemma 4's thoughts
    ],
)
def test_marks_of_calls_are_text_though_they_are_control_tokens(mark: str) -> None:
    tokenizer = byte_level(control=(mark, "<|tool_response_end|>", "<|im_end|>"))
    ids = tokenizer.encode(f"{mark}a<|tool_response_end|><|im_end|>", parse_special=True)
    assert len(ids) == 4
    assert streamed(tokenizer, ids, skip_special=True, continuation=True) == f"{mark}a"
    assert mark in tokenizer.guarded_spellings


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"\xe2\x98", "\ufffd"),
        (b"\xe2\x98x", "\ufffdx"),
        (b"\xf0\x9f\x98\xe2\x98\x83", "\ufffd\u2603"),
        (b"\x80\x80", "\ufffd\ufffd"),
    ],
)
def test_a_broken_character_is_replaced_once(raw: bytes, text: str) -> None:
    tokenizer = spm("a")
    ids = [BYTE + byte for byte in raw]
    assert tokenizer.decode(ids) == streamed(tokenizer, ids) == text


@given(st.lists(st.integers(0, 262), max_size=40))
@settings(max_examples=60, deadline=None)
def test_streamed_and_whole_are_the_same_for_any_ids(ids: list[int]) -> None:
    tokenizer = _spm()
    raw = b"".join(tokenizer.token_bytes(id) for id in ids)
    for options in ({}, {"skip_special": True}, {"continuation": True}):
        text = streamed(tokenizer, ids, **options)
        if options != {"continuation": True}:
            assert text == tokenizer.decode(ids, **options)
    assert streamed(tokenizer, ids, continuation=True) == raw.decode("utf-8", "replace")


@given(st.lists(st.integers(0, 32063), max_size=30), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_a_real_vocabulary_cut_anywhere(ids: list[int], cut: int) -> None:
    tokenizer = _real()
    decoder = tokenizer.stream_decoder()
    first = "".join(map(decoder.push, ids[:cut]))
    second = "".join(map(decoder.push, ids[cut:])) + decoder.finish()
    assert first + second == tokenizer.decode(ids)


# U+2581 is how these vocabularies spell a space, and comes back as one.
@given(st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=60, deadline=None)
def test_decode_undoes_encode(text: str) -> None:
    for tokenizer in (_spm(), _plain_spm(), _bytes()):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


PROMISING = ("gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3")  # those with a token for every byte


@given(st.text(st.characters(exclude_characters="\u2581", exclude_categories=["Cs"]), max_size=60))
@settings(max_examples=40, deadline=None)
def test_vocabularies_that_spell_every_byte_undo_it_too(text: str) -> None:
    for name in PROMISING:
        tokenizer = _vocabulary(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text, name


def test_what_encode_adds_is_taken_off_once() -> None:
    tokenizer = spm("a", "\u2581a", add_eos_token=True)
    assert tokenizer.encode("a") == [1, 260, 2]
    assert tokenizer.decode([1, 260, 2]) == "a"
    assert tokenizer.decode([1, 1, 260, 2, 2]) == "<s> a</s>"
    assert streamed(tokenizer, [260, 2], continuation=True) == " a</s>"
    assert streamed(tokenizer, [260, 2], continuation=True, skip_special=True) == " a"


def test_an_end_token_in_the_middle_is_shown() -> None:
    tokenizer = spm("a", add_eos_token=True)
    assert tokenizer.decode([1, 259, 2, 259, 2]) == "a</s>a"
    assert tokenizer.decode([1, 259, 2, 259, 2], skip_special=True) == "aa"


def test_a_decoder_can_be_used_again() -> None:
    decoder = spm("\u2581a").stream_decoder()
    assert decoder.push(1) + decoder.push(259) + decoder.finish() == "a"
    assert decoder.push(1) + decoder.push(259) + decoder.finish() == "a"


@pytest.mark.parametrize("id", [-1, 10**6])
def test_ids_outside_the_vocabulary(id: int) -> None:
    with pytest.raises(TokenizerError, match=f"token id {id} is not in the vocabulary"):
        spm("a").decode([id])


_cache: dict[str, Tokenizer] = {}


def _spm() -> Tokenizer:
    return _cache.setdefault("spm", spm("a", "b", "\u2581", "ab"))


def _plain_spm() -> Tokenizer:
    return _cache.setdefault("plain", spm("a", "b", "\u2581", "ab", add_space_prefix=False))


def _bytes() -> Tokenizer:
    return _cache.setdefault("bytes", byte_level("a b", "ab c", "\u0120 a"))


def _real() -> Tokenizer:
    if "real" not in _cache:
        _cache["real"] = Tokenizer.from_gguf(shared("tokenizers/ggml-vocab-phi-3.gguf"))
    return _cache["real"]
