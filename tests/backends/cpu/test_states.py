"""States of every kind: what lies where, how far back they go, what a copy of them holds."""

from __future__ import annotations

import numpy as np
import pytest

from llmgen.backends.cpu import checkpoints
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import PlacedContents, PlacedKV, PlacedRecurrent, StateLayout
from llmgen.errors import ContextFullError, LLMGenError, UsageError
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV, Contents, Latent, Recurrent, State

MIXED = [KV(2, 16, 16), Recurrent(24), KV(1, 32, 32, window=100)]


def layout(*specs: State, n_ctx: int = 1024, kv_type: str = "f16") -> StateLayout:
    return StateLayout(list(specs), n_ctx, 64, KVCacheConfig.of(kv_type))


def advance(seq: Sequence, n: int, mark: int) -> None:
    """What a run of n tokens does, here: every state gets ``mark`` wherever it may be written."""
    seq.begin_write(seq.length + n)
    for state in seq.layout.states:
        for first, last in state.spans(seq.length, seq.length + n):
            seq.memory()[first:last] = mark
    seq.commit(n)


def test_a_latent_state_is_one_head_of_two_sizes() -> None:
    [placed] = layout(Latent(512, 64), n_ctx=256).states
    assert isinstance(placed, PlacedKV)
    assert placed.bytes_for(256) == 256 * (512 + 64) * 2
    assert layout(Latent(512, 64)).bytes_per_token == (512 + 64) * 2
    assert placed.value_offset - placed.key_offset == 256 * 64 * 2


def test_contents_are_values_of_one_head_with_summaries_behind_the_ring() -> None:
    [placed] = layout(Contents(64, window=100, every=4), n_ctx=2048).states
    assert isinstance(placed, PlacedContents)
    recent, summaries = placed.parts
    assert recent.blocks == -(-(100 + 64) // KEY_BLOCK) + 1
    assert summaries.blocks == 2048 // 4 // KEY_BLOCK
    assert summaries.value_offset - recent.value_offset == recent.blocks * recent.value_bytes
    assert layout(Contents(64, 100, 4)).bytes_per_token == 64 * 2 + 64 * 2 // 4
    assert layout(Contents(64, 100)).bytes_per_token == 64 * 2
    first, last = list(placed.spans(1024, 1400))[-1]  # summaries 256 to 349
    assert (first - summaries.value_offset, last - first) == (256 * 128, 2 * KEY_BLOCK * 128)
    assert placed.bytes_for(2048) == recent.blocks * KEY_BLOCK * 128 + 512 * 128
    assert placed.shortest_cut(1000) == recent.shortest_cut(1000) > 0


def test_keys_of_stretches_take_a_part_of_the_tokens() -> None:
    [placed] = layout(KV(1, 32, 0, every=4), n_ctx=300).states
    assert isinstance(placed, PlacedKV)
    assert placed.blocks == 2
    assert placed.bytes_per_token == 32 * 2 / 4
    assert placed.bytes_for(3) == 0
    assert [placed.bytes_for(n) for n in (4, 256, 260)] == [4096, 4096, 8192]
    assert [list(placed.spans(0, n))[0][1] for n in (3, 4, 260)] == [0, 4096, 8192]


def recurrent(seq: Sequence) -> set[int]:
    """The bytes that the recurrent state holds."""
    [state] = [state for state in seq.layout.states if isinstance(state, PlacedRecurrent)]
    return set(seq.memory()[state.offset : state.offset + 4 * state.n].tolist())


def test_states_lie_behind_one_another_on_pages_of_their_own() -> None:
    placed = layout(*MIXED)
    end = 0
    for state in placed.states:
        spans = sorted(state.spans(0, 1024))
        assert end <= spans[0][0] < spans[-1][1] <= end + state.nbytes
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
        end += state.nbytes
        assert end % 4096 == 0
    assert placed.nbytes == end


@pytest.mark.parametrize(("kv_type", "element"), [("f16", 2), ("f32", 4), ("bf16", 2)])
def test_bytes_of_floats(kv_type: str, element: int) -> None:
    assert layout(KV(3, 20, 20), kv_type=kv_type).bytes_per_token == 3 * (20 + 32) * element
    assert layout(KV(2, 24, 40), kv_type=kv_type).bytes_per_token == 2 * (24 + 48) * element
    ring = layout(KV(1, 16, 16, window=100), kv_type=kv_type)
    blocks = -(-(100 + 64) // KEY_BLOCK) + 1
    assert ring.bytes_for(1024) == ring.bytes_for(10000) == blocks * KEY_BLOCK * 2 * 16 * element
    assert layout(Recurrent(10)).bytes_for(5) == layout(Recurrent(10)).bytes_for(1000) == 64  # whole vectors
    assert layout(Recurrent(20, rows=3)).bytes_for(1) == 3 * 128
    assert layout(Recurrent(10)).bytes_per_token == 0


@pytest.mark.parametrize(
    ("kv_type", "head", "key", "value"),
    [
        ("q8_0", 64, 64 + 2 * 2, 64 + 2 * 2),
        ("q4_0", 64, 32 + 2 * 2, 32 + 2 * 2),
        ("nf4", 64, 32 + 2, 32 + 2),
        ("q8_0", 80, 80 + 3 * 2, 80 + 3 * 2),  # blocks of 32, 32 and 16
        ("q4_0", 72, 36 + 3 * 2, 48 + 3 * 2),  # values are padded to 16 bytes
        ("nf4", 96, 48 + 2 * 2, 48 + 2 * 2),
        ("nf4", 5, 4 + 2, 16 + 2),  # keys are padded to groups of four
        ("k=q8_0,v=f16", 64, 64 + 2 * 2, 64 * 2),
        ("k=f32,v=nf4", 128, 128 * 4, 64 + 2 * 2),
    ],
)
def test_bytes_of_scaled_kinds(kv_type: str, head: int, key: int, value: int) -> None:
    assert layout(KV(3, head, head), kv_type=kv_type).bytes_per_token == 3 * (key + value)


def test_signatures_tell_layouts_apart() -> None:
    [state] = layout(KV(2, 16, 16)).states
    [same] = layout(KV(2, 16, 16)).states
    [longer] = layout(KV(2, 16, 16), n_ctx=2048).states
    [other] = layout(KV(2, 32, 32)).states
    assert state.accepts(same.signature(), 1024)
    assert state.accepts(longer.signature(), 1024)  # the same bytes as long as both have the blocks
    assert not state.accepts(longer.signature(), 1025)
    assert not state.accepts(other.signature(), 10)
    assert not state.accepts([1], 10)
    [recurrent_state] = layout(Recurrent(8, rows=2)).states
    assert recurrent_state.accepts([8, 2], 10)
    assert not recurrent_state.accepts([9, 2], 10)
    assert not recurrent_state.accepts([8, 3], 10)


def test_a_ring_forgets_block_by_block() -> None:
    [ring] = layout(KV(1, 16, 16, window=100)).states
    assert isinstance(ring, PlacedKV)
    kept = ring.blocks * KEY_BLOCK
    assert ring.shortest_cut(kept) == 0
    assert ring.shortest_cut(kept + 1) == KEY_BLOCK + 100 - 1
    assert ring.shortest_cut(kept + KEY_BLOCK + 1) == 2 * KEY_BLOCK + 100 - 1


def test_keys_of_stretches_are_never_overwritten() -> None:
    [placed] = layout(KV(1, 64, 0, every=4), n_ctx=1001).states
    assert {placed.shortest_cut(written) for written in (100, 257, 1001)} == {0}


# --- recurrent states ---


def test_a_recurrent_state_goes_back_to_a_checkpoint_only() -> None:
    seq = Sequence(layout(*MIXED))
    advance(seq, 50, mark=1)
    seq.checkpoint()
    advance(seq, 30, mark=2)
    assert [seq.cut_point(n) for n in (80, 79, 51, 50, 49, 0)] == [80, 50, 50, 50, 0, 0]
    with pytest.raises(ContextFullError, match="cannot cut back to 60"):
        seq.truncate(60)
    assert (seq.length, recurrent(seq)) == (80, {2})
    seq.truncate(50)
    assert (seq.length, recurrent(seq)) == (50, {1})
    advance(seq, 10, mark=3)
    seq.truncate(50)  # the checkpoint serves again
    assert recurrent(seq) == {1}
    seq.clear()
    assert (seq.length, recurrent(seq), seq.cut_point(50)) == (0, {0}, 0)


def test_some_of_many_checkpoints_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MOST", 4)
    seq = Sequence(layout(Recurrent(24)))
    for n in (5, 100, 1, 1, 1, 1):
        advance(seq, n, mark=seq.length % 256)
        seq.checkpoint()
    assert seq.checkpoints.lengths == [5, 105, 107, 109]  # near others; the last one stays
    monkeypatch.setattr(checkpoints, "MOST_BYTES", 128)  # what one takes
    advance(seq, 1, mark=1)
    seq.checkpoint()
    assert seq.checkpoints.lengths == [105, 110]
    seq.truncate(seq.checkpoints.lengths[0])
    assert seq.checkpoints.lengths[-1] == seq.length


def test_a_failed_run_does_not_return_to_where_a_window_has_lost_its_keys() -> None:
    seq = Sequence(layout(Recurrent(24), KV(1, 16, 16, window=100)))
    advance(seq, 50, mark=1)
    seq.checkpoint()
    advance(seq, 300, mark=2)
    seq.roll_back()
    assert (seq.length, recurrent(seq)) == (0, {0})
    advance(seq, 50, mark=1)
    seq.checkpoint()
    advance(seq, 60, mark=2)
    seq.roll_back()
    assert (seq.length, recurrent(seq)) == (50, {1})


def test_a_run_that_did_not_end_leaves_no_half_state() -> None:
    seq = Sequence(layout(*MIXED))
    advance(seq, 20, mark=1)
    seq.checkpoint()
    advance(seq, 5, mark=2)
    seq.memory()[:] = 9  # a run wrote, and was stopped
    seq.roll_back()
    assert (seq.length, recurrent(seq)) == (20, {1})
    fresh = Sequence(layout(*MIXED))
    advance(fresh, 5, mark=2)
    fresh.roll_back()  # no checkpoint: from the beginning
    assert (fresh.length, recurrent(fresh)) == (0, {0})
    keys = Sequence(layout(KV(2, 16, 16)))
    advance(keys, 5, mark=2)
    keys.roll_back()  # keys behind the length do no harm
    assert keys.length == 5


def test_forks_and_copies_carry_recurrent_states_and_checkpoints() -> None:
    seq = Sequence(layout(*MIXED))
    advance(seq, 40, mark=1)
    seq.checkpoint()
    advance(seq, 2, mark=2)
    fork = seq.fork()
    advance(seq, 1, mark=3)
    assert recurrent(fork) == {2}
    fork.truncate(40)
    assert recurrent(fork) == {1}
    fork.become(seq, 40)
    assert (fork.length, recurrent(fork), fork.cut_point(41)) == (43, {3}, 40)
    for mine, its in zip(seq.filled(), fork.filled(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_a_sequence_without_recurrent_states_needs_no_checkpoint() -> None:
    seq = Sequence(layout(KV(2, 16, 16)))
    advance(seq, 30, mark=1)
    seq.checkpoint()
    assert [seq.cut_point(n) for n in (30, 17, 1)] == [30, 17, 1]
    with pytest.raises(LLMGenError, match="choose 0 to 30"):
        seq.truncate(31)


def test_the_parts_of_a_latent_state_have_kinds_of_their_own() -> None:
    [state] = layout(Latent(64, 32), kv_type="c=q8_0,r=f32").states
    assert (state.values.key, state.keys.key) == ("q8_0", "f32")
    with pytest.raises(UsageError, match="c= and r= are for latent attention"):
        layout(KV(2, 16, 16), kv_type="c=q8_0")
