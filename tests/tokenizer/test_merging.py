"""The two mergers agree: with each other, and on vocabularies full of holes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.tokenizer import bpe
from llmgen.tokenizer.merging import LibraryMerger, PlainMerger
from vocabularies import byte_level

SPELLINGS = [a + b + c for a in "abc" for b in ("", *"abc") for c in ("", *"abc")]
MERGES = [f"{a} {b}" for a in SPELLINGS for b in SPELLINGS if len(a + b) <= 4]


@given(
    tokens=st.sets(st.sampled_from(SPELLINGS)),
    merges=st.lists(st.sampled_from([*MERGES, "", " ", "odd", " a", "a "]), max_size=25),
    pieces=st.lists(st.text("abcd", min_size=1, max_size=12), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_they_agree(tokens: set[str], merges: list[str], pieces: list[str]) -> None:
    ids = {token: i for i, token in enumerate(sorted(tokens))}

    def spell_out(spelling: str) -> list[int]:
        return [ids[char] for char in spelling if char in ids]

    raw = [merge.encode() for merge in merges]
    plain = PlainMerger(ids, raw, spell_out)
    library = LibraryMerger(ids, raw, spell_out, len(ids), list("abcd"), byte_fallback=False)
    assert plain.encode(pieces) == library.encode(pieces)


def test_the_best_pair_goes_first_and_the_left_one_of_equals() -> None:
    ids = {text: i for i, text in enumerate(["a", "b", "ab", "aa", "aab"])}
    merger = PlainMerger(ids, [b"a b", b"a a", b"a ab"], lambda spelling: [])
    assert merger.encode(["aaab"]) == [3, 2]
    assert merger.encode(["aaa", "ab"]) == [3, 0, 2]


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "gemma4"])
def test_a_long_text_is_merged_as_its_parts_are(pre: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merges = ("a b", "\u0120 a", "\u0120a b", "b c", "ab c")
    line = "abc ab c\u00e9 bca\n"
    short = byte_level(*merges, pre=pre, bos_token_id=0, add_bos_token=False)
    expected = short.encode(line, add_special=False)
    monkeypatch.setattr(bpe, "_SHORT", 0)
    long = byte_level(*merges, pre=pre, bos_token_id=0, add_bos_token=False)
    assert long.encode(line, add_special=False) == expected
    assert long.encode(line * 50, add_special=False) == expected * 50
