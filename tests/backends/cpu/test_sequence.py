"""The cache's contract: cut, clear, fork, fill, and never half a step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from archs import build_arch, build_variant
from engines import engine, one_by_one
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.errors import ContextFullError, LLMGenError
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV, Recurrent
from naive import logits, nmse

TOKENS = np.random.default_rng(8).integers(0, 128, 120).tolist()


@pytest.fixture(scope="module", params=["llama-dense", "gemma3-dense"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with engine(build_arch(request.param), n_ctx=128) as loaded:
        yield loaded


def test_what_prefill_returns(model: Model) -> None:
    seq = model.new_sequence()
    assert seq.length == 0
    assert model.prefill(seq, TOKENS[:10], logits="none") is None
    every = model.prefill(seq, TOKENS[10:20], logits="all")
    last = model.prefill(seq, TOKENS[20:30])
    assert seq.length == 30
    assert every.shape == (10, model.config.vocab_size)
    assert last.shape == (model.config.vocab_size,)
    again = model.new_sequence()
    whole = model.prefill(again, TOKENS[:30], logits="all")
    np.testing.assert_array_equal(whole[10:20], every)
    np.testing.assert_array_equal(whole[-1], last)


def test_prefill_results_are_the_callers(model: Model) -> None:
    seq = model.new_sequence()
    first = model.prefill(seq, TOKENS[:10], logits="all")
    kept = first.copy()
    model.prefill(seq, TOKENS[10:20], logits="all")
    np.testing.assert_array_equal(first, kept)


def test_cut_back_and_go_on(model: Model) -> None:
    seq = model.new_sequence()
    before = model.prefill(seq, TOKENS[:60], logits="all")
    seq.truncate(41)
    assert seq.length == 41
    np.testing.assert_array_equal(model.prefill(seq, TOKENS[41:60], logits="all"), before[41:])
    seq.truncate(60)
    assert seq.length == 60  # nothing to cut
    seq.truncate(50)
    other = [int(t) for t in reversed(TOKENS[:10])]
    fresh = model.prefill(model.new_sequence(), TOKENS[:50] + other)
    np.testing.assert_array_equal(model.prefill(seq, other), fresh)


def test_generated_tokens_can_be_cut(model: Model) -> None:
    seq = model.new_sequence()
    model.prefill(seq, TOKENS[:30], logits="none")
    first = one_by_one(model, seq, TOKENS[30:50])
    seq.truncate(30)
    np.testing.assert_array_equal(one_by_one(model, seq, TOKENS[30:50]), first)


@pytest.mark.parametrize("n", [-1, 21])
def test_impossible_cuts(model: Model, n: int) -> None:
    seq = model.new_sequence()
    model.prefill(seq, TOKENS[:20], logits="none")
    with pytest.raises((LLMGenError, ValueError)):
        seq.truncate(n)
    assert seq.length == 20


def test_clear(model: Model) -> None:
    seq = model.new_sequence()
    first = model.prefill(seq, TOKENS[:40])
    seq.clear()
    assert seq.length == 0
    np.testing.assert_array_equal(model.prefill(seq, TOKENS[:40]), first)


def test_forks_go_separate_ways(model: Model) -> None:
    seq = model.new_sequence()
    model.prefill(seq, TOKENS[:50], logits="none")
    fork = seq.fork()
    assert fork.length == 50
    left = one_by_one(model, seq, TOKENS[50:70])
    right = one_by_one(model, fork, TOKENS[70:90])
    fresh = model.new_sequence()
    model.prefill(fresh, TOKENS[:50], logits="none")
    np.testing.assert_array_equal(one_by_one(model, fresh, TOKENS[70:90]), right)
    seq.truncate(50)
    np.testing.assert_array_equal(one_by_one(model, seq, TOKENS[50:70]), left)
    seq.close()
    np.testing.assert_array_equal(
        model.decode([fork], [TOKENS[0]]).copy(), model.decode([fresh], [TOKENS[0]])
    )


@pytest.mark.parametrize(("start", "mine", "its"), [(5, 3, 9), (50, 20, 20), (70, 30, 2), (100, 4, 15)])
def test_a_sequence_becomes_another(model: Model, start: int, mine: int, its: int) -> None:
    """Also where a window is full; what both begin with is not copied."""
    trunk = model.new_sequence()
    model.prefill(trunk, TOKENS[:start], logits="none")
    seq, other = trunk.fork(), trunk.fork()
    one_by_one(model, seq, TOKENS[:mine])
    one_by_one(model, other, TOKENS[-its:])
    seq.become(other, start)
    assert (seq.length, seq.written) == (other.length, other.written)
    one_by_one(model, trunk, TOKENS[-its:])
    other.close()
    np.testing.assert_array_equal(
        one_by_one(model, seq, TOKENS[20:24]), one_by_one(model, trunk, TOKENS[20:24])
    )


def test_a_sequence_becomes_no_stranger(model: Model) -> None:
    seq, other = model.new_sequence(), model.new_sequence()
    model.prefill(seq, TOKENS[:5], logits="none")
    with pytest.raises(LLMGenError, match="cannot share 3"):
        seq.become(other, 3)


def test_a_full_context_commits_nothing(model: Model) -> None:
    seq = model.new_sequence()
    model.prefill(seq, TOKENS[:120], logits="none")
    with pytest.raises(ContextFullError):
        model.prefill(seq, TOKENS[:9])
    assert seq.length == 120
    model.prefill(seq, TOKENS[:8])
    assert seq.length == model.n_ctx == 128
    with pytest.raises(ContextFullError):
        model.decode([seq], [1])
    assert seq.length == 128


@pytest.mark.parametrize("ids", [[128], [-1], [3, 1 << 40]])
def test_tokens_outside_the_vocabulary(model: Model, ids: list[int]) -> None:
    seq = model.new_sequence()
    with pytest.raises((LLMGenError, ValueError)):
        model.prefill(seq, ids)
    with pytest.raises((LLMGenError, ValueError)):
        model.decode([seq], ids[-1:])
    assert seq.length == 0


def test_one_sequence_twice_in_a_batch(model: Model) -> None:
    seq = model.new_sequence()
    with pytest.raises((LLMGenError, ValueError)):
        model.decode([seq, seq], [1, 2])


def test_sequences_share_nothing(model: Model) -> None:
    first, second = model.new_sequence(), model.new_sequence()
    model.prefill(first, TOKENS[:30], logits="none")
    model.prefill(second, TOKENS[60:100], logits="none")
    mixed = model.prefill(first, TOKENS[30:50], logits="all")
    alone = model.prefill(model.new_sequence(), TOKENS[:50], logits="all")[30:]
    np.testing.assert_array_equal(mixed, alone)


def test_windows_say_how_far_back_they_can_be_cut() -> None:
    path = build_variant("gemma3-dense", "long", set_keys={"context_length": ("UINT32", 2048)})
    tokens = np.random.default_rng(9).integers(0, 128, 1500).tolist()
    expected = logits(path, tokens)
    with engine(path, n_ctx=2048) as model:
        seq = model.new_sequence()
        for start in range(0, 1500, 100):
            model.prefill(seq, tokens[start : start + 100], logits="none")
        least = next(n for n in range(1, 1501) if seq.cut_point(n) == n)
        assert 1 < least < 1500
        assert seq.cut_point(least - 1) == 0
        with pytest.raises((LLMGenError, ValueError)):
            seq.truncate(least - 1)
        seq.truncate(least)
        assert seq.length == least
        rows = model.prefill(seq, tokens[least:], logits="all")
        assert nmse(rows, expected[least:]) < 1e-6
        seq.clear()
        assert nmse(model.prefill(seq, tokens[:200], logits="all"), expected[:200]) < 1e-6


@pytest.mark.parametrize("window", [0, 5, 100])
@pytest.mark.parametrize("chunk", [8, 64])
def test_what_can_be_taken_back_can_be_taken_back(window: int, chunk: int) -> None:
    """At any length that a sequence may have; and where its windows hold what it needs, it can be."""
    layout = StateLayout([KV(1, 16, 16, window), KV(1, 16, 16)], 700, chunk, KVCacheConfig.of("f16"))
    seq, rng = Sequence(layout), np.random.default_rng(window)
    for _ in range(3000):
        if seq.length + chunk > 700 or rng.random() < 0.1:
            seq.truncate(seq.cut_point(int(rng.integers(seq.length + 1))))
        before, n = seq.length, int(rng.integers(1, 9))
        can = seq.can_take_back(n)
        seq.commit(n)
        if can:
            seq.truncate(before)
        assert can == (seq.cut_point(before) == before)
        assert can or before < seq.written - chunk  # only after a cut that left nothing to spare
        seq.commit(int(rng.integers(1, chunk + 1)) if seq.length + chunk <= 700 else 0)
    recurrent = Sequence(StateLayout([KV(1, 16, 16), Recurrent(4)], 700, chunk, KVCacheConfig.of("f16")))
    assert not recurrent.can_take_back(1)
