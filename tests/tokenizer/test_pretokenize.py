"""The table of pre-tokenizers: what its rules cut, and that they do it in linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.tokenizer.pretokenize import pretokenize
from llmgen.tokenizer.pretokenizers import DEFAULT, PRE_TOKENIZERS
from llmgen.tokenizer.unicode import category, fold, replace_surrogates

ROWS = {id(row): name for name, row in PRE_TOKENIZERS.items()}
MIXED = st.text(
    st.sampled_from("aZ\u00e9\u4e2d7\u0663 \t\n\r\u00a0'sT.,<|>\u0301\u20ac\U0001f600\x00"), max_size=60
)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "Hello world's  12 cats!", ["Hello", " world", "'s", " ", " 12", " cats", "!"]),
        ("gpt-2", "a \n b", ["a", " \n", " b"]),
        ("smollm", "x12", ["x", "1", "2"]),
        ("llama-bpe", "I'LL pay 12345.\n\n ok", ["I", "'LL", " pay", " ", "123", "45", ".\n\n", " ok"]),
        ("qwen2", "a12\u00a0b", ["a", "1", "2", "\u00a0b"]),
        ("qwen35", "e\u0301e", ["e\u0301e"]),
        ("qwen2", "e\u0301e", ["e", "\u0301e"]),
        ("tekken", "HelloWORLDfoo", ["Hello", "WORLDfoo"]),
        ("gpt-4o", "HELLO'll/\n", ["HELLO'll", "/\n"]),
        ("deepseek-v3", "abc1234", ["abc", "123", "4"]),
        ("superbpe", "abc1234567", ["abc", "1", "234", "567"]),
        ("afmoe", "12345 67", ["12", "345", " ", "67"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("kimi-k2", "\u4e2d\u6587abc\u4e2d", ["\u4e2d\u6587", "abc", "\u4e2d"]),
        ("bloom", "one (two)", ["one", " (", "two", ")"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("chameleon", "IMGIMGABZx 1", ["IMGIMGABZ", "x", " ", "1"]),
        ("default", "ab12345?", ["ab", "123", "45", "?"]),
    ],
)
def test_pieces(pre: str, text: str, pieces: list[str]) -> None:
    assert pretokenize(text, PRE_TOKENIZERS[pre]) == pieces


@pytest.mark.parametrize("name", ROWS.values())
@given(text=MIXED)
@settings(max_examples=12, deadline=None)
def test_pieces_are_the_text(name: str, text: str) -> None:
    pieces = pretokenize(text, PRE_TOKENIZERS[name])
    assert "".join(pieces) == text
    assert all(pieces)


@pytest.mark.parametrize("name", ROWS.values())
def test_linear(name: str) -> None:
    size = 50_000
    for text in ("a" * size, "A" * size, " " * size + "x", "\n" * size, "7" * size, "\u4e2d" * size):
        start = time.process_time()
        pretokenize(text, PRE_TOKENIZERS[name])
        assert time.process_time() - start < 2, text[:1]


def test_names_that_files_carry() -> None:
    known = "llama-bpe qwen2 tekken gpt-4o smollm deepseek-v3 gemma4 glm4 kimi-k2 command-r refact default"
    assert set(known.split()) <= PRE_TOKENIZERS.keys()
    assert PRE_TOKENIZERS["default"] is DEFAULT


def test_the_unicode_version_is_fixed() -> None:
    assert category(0x31EF) == "S"  # new in 15.1
    assert category(0x105C0) == "O"  # new in 16.0, so not a letter here
    assert category(0x10FFFF) == category(0xD800) == "O"
    assert fold("a\u00e9\u4e2d\u0663\u2028\u0301") == "a\xd2\xd2\xd1\x0b\xd4"


def test_lone_surrogates() -> None:
    assert replace_surrogates("a\ud800b") == "a\ufffdb"
    assert replace_surrogates("\U0001f600") == "\U0001f600"
