"""Vocabularies of every kind, and files whose vocabulary makes no sense."""

from __future__ import annotations

import enum
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from llmgen.errors import TokenizerError, UsageError
from llmgen.tokenizer import Tokenizer, bpe
from llmgen.tokenizer.words import WordTable
from vocabularies import BYTES, PREFIX, byte_level, metadata, spm, spm_tokens, strings


def test_byte_level_merges_the_best_pair_first() -> None:
    tokenizer = byte_level("a b", "b c", "ab c", "\u0120 ab")
    spelled = [tokenizer.token_text(id) for id in tokenizer.encode("abc bc ab")]
    assert spelled == ["abc", "\u0120", "bc", "\u0120ab"]


def test_a_merge_may_name_what_is_no_token() -> None:
    """llama.cpp merges spellings; one that is no token in the end is written in ASCII bytes."""
    base = byte_level("a b", "b c", "ab c")
    tokens = [base.token_text(id).encode() for id in range(base.n_vocab)]
    tokens.remove(b"ab")
    holes = Tokenizer(
        metadata("gpt2", tokens, merges=[b"a b", b"b c", b"ab c", b"no", b"", b"x y"], pre="gpt-2")
    )
    assert [holes.token_text(id) for id in holes.encode("abcab")] == ["abc", "a", "b"]


def test_bytes_without_a_token_are_dropped() -> None:
    tokenizer = Tokenizer(metadata("gpt2", [b"a", b"b"], merges=[b"a b"], pre="gpt-2"))
    assert tokenizer.encode("a\u00e9b a") == [0, 1, 0]


def test_whole_words_come_before_merges_where_the_row_says_so() -> None:
    for pre, expected in (("llama-bpe", ["abc"]), ("gpt-2", ["a", "bc"])):
        tokenizer = byte_level("b c", pre=pre, control=("<s>",), token_type=np.ones(258, np.int32))
        tokens = [tokenizer.token_text(id).encode() for id in range(257)] + [b"abc"]
        whole = Tokenizer(
            metadata("gpt2", tokens, merges=[b"b c"], pre=pre, add_bos_token=False, bos_token_id=0)
        )
        assert [whole.token_text(id) for id in whole.encode("abc")] == expected


def test_scored_merges() -> None:
    tokenizer = spm("a", "b", "c", "ab", "bc", "\u2581", scores=[-9, -9, -9, -2, -1, -3])
    assert [tokenizer.token_text(id) for id in tokenizer.encode("abc\u00e9", False)] == [
        "\u2581", "a", "bc", "<0xC3>", "<0xA9>",
    ]  # fmt: skip


def test_a_byte_without_a_token_leaves_the_others_theirs() -> None:
    """One bad spelling among the 256 loses that byte, with a warning, and not every character that is no token."""
    tokens, types = spm_tokens("a")
    tokens[3 + 0xC3] = b"<0xGG>"
    broken = Tokenizer(metadata("llama", tokens, token_type=types, add_space_prefix=False))
    assert broken.encode("a\u00e9\u4e2d\u00ff", False) == [
        259, 0, 3 + 0xA9, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD, 0, 3 + 0xBF,
    ]  # fmt: skip
    assert ["255 of the 256 bytes" in warning and "<0xC3>" in warning for warning in broken.warnings] == [
        True
    ]
    assert spm("a").warnings == []


def test_a_vocabulary_without_bytes_knows_no_other_characters() -> None:
    plain = Tokenizer(metadata("llama", [b"<unk>", b"<s>", b"</s>", b"a"], add_space_prefix=False))
    assert plain.encode("a\u00e9a", False) == [3, 0, 3]
    assert plain.warnings == []


def test_gemma4_warns_of_bytes_without_a_token() -> None:
    tokens = [b"<bos>", b"a", *BYTES[:0xA9], b"<0xGG>", *BYTES[0xAA:]]
    tokenizer = Tokenizer(metadata("gemma4", tokens, merges=[], bos_token_id=0, add_bos_token=False))
    assert tokenizer.encode("a\u00e9", False) == [1, 2 + 0xC3]
    assert ["<0xA9>" in warning for warning in tokenizer.warnings] == [True]


def test_unigram_takes_the_best_sum() -> None:
    tokens = [b"<pad>", b"</s>", b"<unk>", b"a", b"b", b"ab", b"aba", b"\xe2\x96\x81", b"<x>"]
    types = np.array([3, 3, 2, 1, 1, 1, 1, 1, 4], np.int32)
    scores = np.array([0, 0, 0, -3, -3, -4, -4.5, -1, 0], np.float32)
    tokenizer = Tokenizer(
        metadata("t5", tokens, token_type=types, scores=scores, remove_extra_whitespaces=True)
    )
    spelled = [tokenizer.token_text(id) for id in tokenizer.encode("abab  \u00e9\u00e9a<x>")]
    # aba+b is -7.5, ab+ab is -8; two unknown letters are one unknown token.
    assert spelled == ["\u2581", "aba", "b", "\u2581", "<unk>", "a", "<x>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"
    assert [tokenizer.token_text(id) for id in tokenizer.encode_fragment("ab a")] == ["ab", "\u2581", "a"]
    assert [tokenizer.token_text(id) for id in tokenizer.encode_fragment(" ab")] == ["\u2581", "ab"]


def test_a_fragment_is_no_beginning() -> None:
    tokenizer = spm("a", "\u2581", "\u2581a", scores=[-2, -3, -1])
    for text, wanted in (("a", ["a"]), (" a", ["\u2581a"]), ("</s>a", ["</s>", "\u2581a"])):
        assert [tokenizer.token_text(id) for id in tokenizer.encode_fragment(text)] == wanted


def test_a_text_is_cut_at_control_tokens() -> None:
    tokenizer = byte_level(control=("<|a|>", "<b>"), token_type=np.array([1] * 256 + [3, 4], np.int32))
    assert tokenizer.cut_control("x<|a|><b>y\ud800") == ["x", 256, "<b>", "y\ufffd"]
    assert tokenizer.cut_control("<|a") == ["<|a"]


def test_rwkv_takes_the_longest_match() -> None:
    tokens = [b"<s>", b"a", b"ab", b"abcd", b"\\n", b"\\xe4\\xb8", b"\\xad", b"\\\\", b"b", b"c"]
    tokenizer = Tokenizer(metadata("rwkv", tokens, unknown_token_id=0))
    ids = tokenizer.encode("ababcdabc\n\u4e2d\\z")
    assert ids == [2, 3, 2, 9, 4, 5, 6, 7, 0]
    assert tokenizer.decode(ids[:-1]) == "ababcdabc\n\u4e2d\\"


def test_plamo_takes_the_cheapest_path() -> None:
    tokens, types = spm_tokens("a", "b", "ab", "ba", "aba")
    scores = np.array([0.0] * 259 + [-3, -3, -5, -5, -8], np.float32)
    tokenizer = Tokenizer(metadata("plamo2", tokens, token_type=types, scores=scores))
    # ab+a, a+ba and aba cost 8 each: the longer first token wins.
    assert [tokenizer.token_text(id) for id in tokenizer.encode("\ufeffaba\u00e9")] == [
        "aba", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("ab\u00e9")) == "ab\u00e9"
    with pytest.raises(TokenizerError, match="no token <0x00>"):
        Tokenizer(metadata("plamo2", [b"a"]))


def test_gemma4_merges_over_spaces() -> None:
    tokens = [
        b"<bos>",
        b"a",
        b"b",
        "\u2581".encode(),
        "a\u2581".encode(),
        "a\u2581b".encode(),
        b"\n\n",
        *BYTES,
    ]
    types = np.array([3] + [1] * 6 + [6] * 256, np.int32)
    merges = ["a \u2581".encode(), "a\u2581 b".encode()]
    tokenizer = Tokenizer(
        metadata("gemma4", tokens, token_type=types, merges=merges, bos_token_id=0, add_bos_token=False)
    )
    assert tokenizer.encode("a b\n\n\n\u00e9") == [0, 5, 17, 17, 17, 7 + 0xC3, 7 + 0xA9]
    assert tokenizer.encode("a\n\n") == [0, 1, 6]
    assert tokenizer.decode(tokenizer.encode("a b\u00e9")) == "a b\u00e9"


@pytest.mark.parametrize("kind", ["no_vocab", "none"])
def test_no_vocabulary_refuses_only_text(kind: str) -> None:
    keys = {PREFIX + "model": kind, "general.architecture": "llama", "llama.vocab_size": 32}
    tokenizer = Tokenizer(keys)
    assert (tokenizer.n_vocab, tokenizer.eog_ids, tokenizer.has_text) == (32, frozenset(), False)
    for call in (
        lambda: tokenizer.encode("a"),
        lambda: tokenizer.decode([1]),
        tokenizer.stream_decoder,
        lambda: tokenizer.encode_parts([("a", True)]),
    ):
        with pytest.raises(TokenizerError, match="no vocabulary"):
            call()


def test_an_unknown_pre_warns_by_name() -> None:
    tokenizer = Tokenizer(metadata("gpt2", [b"a"], merges=[], pre="no-such-pre"))
    assert any("'no-such-pre'" in sentence for sentence in tokenizer.warnings)
    assert Tokenizer(metadata("gpt2", [b"a"], merges=[])).warnings
    assert not Tokenizer(metadata("gpt2", [b"a"], merges=[], pre="default")).warnings


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("no tokenizer.ggml.model", {}),
        ("'bert' belongs to an encoder", {"model": "bert", "tokens": [b"a"]}),
        ("'xyz' is not known", {"model": "xyz"}),
        ("model is 5", {"model": 5}),
        ("no tokenizer.ggml.tokens", {"model": "llama"}),
        ("tokens is 5", {"model": "llama", "tokens": 5}),
        ("tokens is empty", {"model": "llama", "tokens": []}),
        ("70,000 bytes", {"model": "llama", "tokens": [b"x" * 70_000]}),
        (
            "scores has 1 entries",
            {"model": "llama", "tokens": [b"a", b"b"], "scores": np.zeros(1, np.float32)},
        ),
        ("a NaN", {"model": "llama", "tokens": [b"a"], "scores": np.full(1, np.nan, np.float32)}),
        ("token_type has 0", {"model": "llama", "tokens": [b"a"], "token_type": np.zeros(0, np.int32)}),
        ("token_type is 'x'", {"model": "llama", "tokens": [b"a"], "token_type": "x"}),
        ("bos_token_id is 1.5", {"model": "llama", "tokens": [b"a"], "bos_token_id": 1.5}),
        ("add_bos_token is 'yes'", {"model": "llama", "tokens": [b"a"], "add_bos_token": "yes"}),
        ("no tokenizer.ggml.merges", {"model": "gpt2", "tokens": [b"a"], "pre": "gpt-2"}),
        ("merges is 5", {"model": "gpt2", "tokens": [b"a"], "merges": 5}),
        ("pre is 5", {"model": "gpt2", "tokens": [b"a"], "merges": [], "pre": 5}),
        ("no unknown token", {"model": "t5", "tokens": [b"a"]}),
        (
            "charsmap is damaged",
            {"model": "t5", "tokens": [b"a"] * 3, "precompiled_charsmap": np.full(3, 255, np.uint8)},
        ),
    ],
)
def test_hostile(words: str, keys: dict) -> None:
    made = {PREFIX + name: strings(v) if isinstance(v, list) else v for name, v in keys.items()}
    with pytest.raises(TokenizerError, match=words):
        Tokenizer(made)


@pytest.mark.parametrize("short", [0, 4096])
def test_odd_tokens_do_no_harm(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_SHORT", short)
    odd = [b"", b"", b"a", b"a", b"\xff", b"\xe2\x96", b"x\0y", b"x" * 500]
    tokens, types = spm_tokens()
    for kind, extra in (
        ("llama", {}),
        ("gpt2", {"merges": [b"\xff a", b"a a", b"a\nb c", b"\xff \xfe" * 999], "pre": "gpt-2"}),
        ("rwkv", {}),
        ("t5", {}),
    ):
        wild = np.concatenate([types, np.array([1, 9, -3, 1, 1, 4, 3, 1], np.int32)])
        tokenizer = Tokenizer(metadata(kind, tokens + odd, token_type=wild, unknown_token_id=0, **extra))
        for text in ("", "a", "x\0y <s>", "\ud800", "aaa"):
            tokenizer.decode(tokenizer.encode(text, parse_special=True))
        assert isinstance(tokenizer.decode(range(tokenizer.n_vocab)), str)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_long_tokens_do_no_harm_to_merges(kind: str) -> None:
    tokens, types = spm_tokens()
    more = {"merges": [], "pre": "gpt-2"} if kind == "gpt2" else {}
    tokenizer = Tokenizer(metadata(kind, [*tokens, b"x" * 5000], token_type=np.append(types, 1), **more))
    assert 259 not in tokenizer.encode("xx")
    assert tokenizer.decode([259]) == "x" * 5000


@pytest.mark.parametrize("kind", ["t5", "plamo2", "rwkv"])
def test_long_tokens_are_refused_where_text_is_searched_for_them(kind: str) -> None:
    tokens, types = spm_tokens()
    tokenizer = Tokenizer(
        metadata(kind, [*tokens, b"x" * 600], token_type=np.append(types, 1), unknown_token_id=0)
    )
    with pytest.raises(TokenizerError, match="a token of 600 characters, expected at most 512"):
        tokenizer.encode("x")


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("tokens", [b"a"] * (2**19 + 1), "tokens has 524,289 entries, expected at most 524,288"),
        ("merges", [b"a b"] * (2**20 + 1), "merges has 1,048,577 entries, expected at most 1,048,576"),
        ("tokens", [b"a" * 60_000] * 600, "tokens has 36,004,800 bytes, expected at most 33,554,432"),
    ],
)
def test_a_vocabulary_for_gigabytes_of_memory_is_refused(key: str, values: list[bytes], words: str) -> None:
    with pytest.raises(TokenizerError, match=words):
        Tokenizer(metadata("gpt2", **{"tokens": [b"a"], "merges": [], key: values}))


def charsmap(units: dict[int, int], texts: bytes) -> np.ndarray:
    """A table of replacements with these units of its double array."""
    table = np.zeros(1024, "<u4")
    for at, unit in units.items():
        table[at] = unit
    return np.frombuffer(len(table.tobytes()).to_bytes(4, "little") + table.tobytes() + texts, np.uint8)


ROOT, A = 0x100, 0x100 ^ ord("a")  # where the root's children are, and the one for "a"
LEAF = {0: ROOT << 10, A: ord("a") | 1 << 8 | 0x200 << 10, A ^ 0x200: 0}
LOOP = {0: ROOT << 10, A: ord("a") | ord("a") << 10}  # behind "a" comes the same node again


def test_a_charsmap_replaces() -> None:
    model = Tokenizer(t5(charsmap(LEAF, b"xyz\0")))._model
    assert model.normalize("bab") == "bxyzb"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("units", "texts", "words"),
    [
        (LEAF, b"x" * 1_000_000 + b"\0", "a replacement in it is longer than 256 bytes"),
        (LEAF, b"x" * 100, "points outside"),
        (LOOP, b"x\0", "a sequence in it is longer than 256 characters"),
    ],
)
def test_a_charsmap_cannot_make_much_of_little(units: dict[int, int], texts: bytes, words: str) -> None:
    tokenizer = Tokenizer(t5(charsmap(units, texts)))
    with pytest.raises(TokenizerError, match=words):
        tokenizer.encode("a" * 1000)


def t5(table: np.ndarray) -> dict[str, Any]:
    return metadata("t5", [b"<pad>", b"</s>", b"<unk>", b"a"], precompiled_charsmap=table)


def test_all_words_that_a_text_begins_with_are_found() -> None:
    """Against a search through all of them, in words that share much."""
    rng = random.Random(3)
    words = sorted({"".join(rng.choices("ab", k=rng.randint(1, 7))) for _ in range(60)})
    table = WordTable(words)
    for _ in range(300):
        text = "".join(rng.choices("abc", k=9))
        at = rng.randrange(9)
        found, at_word = [], table.longest(text, at)
        while at_word >= 0:
            found.append(table.words[at_word])
            at_word = table.shorter[at_word]
        expected = [word for word in words if text.startswith(word, at)]
        assert found == sorted(expected, key=len, reverse=True)


def test_ids_outside_the_vocabulary_are_no_special_tokens() -> None:
    tokenizer = spm("a", bos_token_id=10**6, eos_token_id=0xFFFFFFFF)
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert any("bos_token_id is 1000000" in sentence for sentence in tokenizer.warnings)


def test_end_tokens_by_key_and_by_spelling() -> None:
    control = ("<|im_end|>", "<|x|>", "<|y|>", "<|file_sep|>")
    tokenizer = byte_level(control=control, eot_token_id=257, eom_token_id=258, eos_token_id=0)
    assert tokenizer.eog_ids == {0, 256, 257, 258, 259}


def test_an_end_spelling_is_control_whatever_its_type() -> None:
    tokenizer = byte_level(control=("<|im_end|>",), token_type=np.ones(257, np.int32))
    assert tokenizer.is_control(256)
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [256]
    assert len(tokenizer.encode("<|im_end|>")) > 1


def test_gpt_oss_ends_with_return_not_with_end() -> None:
    tokenizer = byte_level(control=("<|end|>", "<|return|>", "<|call|>", "<|channel|>"))
    assert tokenizer.eog_ids == {257, 258}
    assert not tokenizer.is_control(256)
    assert not tokenizer.is_control(259)


def test_the_longest_spelling_wins() -> None:
    tokenizer = byte_level(control=("<a>", "b<a><c>", "<c>"))
    assert tokenizer.encode("<a>b<a><c><c>", parse_special=True) == [256, 257, 258]


def test_the_package_is_light() -> None:
    """Libraries load when they are used: jinja2 for templates, the others for their own kind."""
    code = (
        "import sys, llmgen.tokenizer as t; t.StopMatcher(['a']); t.ChatTemplate('x');"
        "print([m for m in ('jinja2', 'tokenizers', 'sentencepiece', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_no_text_and_no_id_is_named() -> None:
    tokenizer = spm("a")
    for wrong, kind in ((b"bytes", "bytes"), (5, "an int"), (None, "None")):
        with pytest.raises(UsageError, match=f"the text is {kind}, expected a str"):
            tokenizer.encode(wrong)  # type: ignore[arg-type]
    for wrong_id in ("a", 1.5, None):
        with pytest.raises(UsageError, match="token ids must be whole numbers, not"):
            tokenizer.decode([wrong_id])  # type: ignore[list-item]
    assert tokenizer.decode(np.array([259])) == tokenizer.decode([259])


def test_numpy_never_meets_an_enum(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would ask the enum for attributes through Python code, and drop a KeyboardInterrupt that comes there."""
    asked: list[str] = []

    def look(kind: type, name: str) -> object:
        asked.append(name)
        raise AttributeError(name)

    monkeypatch.setattr(enum.EnumType, "__getattr__", look, raising=False)
    for tokenizer in (byte_level("a b"), spm("ab", scores=[-1.0])):
        assert all(isinstance(tokenizer.token_bytes(id), bytes) for id in range(tokenizer.n_vocab))
        tokenizer.decode(tokenizer.encode("ab"))
    assert asked == []
