"""A long sequence's memory becomes large pages where it is mostly in use, and keeps what it holds."""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import pytest

from llmgen.backends.cpu.large_states import FIRST_LENGTH, LargeStates, Spans
from llmgen.backends.cpu.memory import anonymous
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.gguf.large_pages import page_bytes, supported
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV

A_LONG_TIME = 1000.0
"""Seconds: what is due is paid for."""


def all_of(nbytes: int) -> Spans:
    return lambda: [(0, nbytes)]


def collapses() -> bool:
    """Whether this system makes large pages of memory in use (Linux 6.1)."""
    if not supported():
        return False
    memory = anonymous(2 * page_bytes())
    memory.write(b"x" * (2 * page_bytes()))
    large = LargeStates(memory, int(np.frombuffer(memory, np.uint8).ctypes.data))
    large.after(A_LONG_TIME, FIRST_LENGTH, all_of(2 * page_bytes()))
    return bool(large.done)


needs_collapse = pytest.mark.skipif(not collapses(), reason="no large pages here (Linux 6.1 and later)")


@needs_collapse
def test_pages_that_are_half_in_use_become_large_and_keep_their_bytes() -> None:
    size = page_bytes()
    memory = anonymous(6 * size)
    data = np.frombuffer(memory, np.uint8)
    address = int(data.ctypes.data)
    first = -address % size
    spans = [
        (0, first + size // 2),  # page 0: half
        (first + size, first + size + size // 2 - 1),  # page 1: a byte less
        (first + 2 * size, first + 2 * size + size // 4),  # page 2: half, in two pieces
        (first + 3 * size - size // 4, first + 3 * size),
    ]
    written = np.random.default_rng(0).integers(0, 256, data.size, dtype=np.uint8)
    for start, stop in spans:
        data[start:stop] = written[start:stop]
    large = LargeStates(memory, address)
    for _ in range(3):
        large.after(A_LONG_TIME, 2000, lambda: iter(spans))
    assert large.done == {0, 2}
    for start, stop in spans:
        np.testing.assert_array_equal(data[start:stop], written[start:stop])
    full = [(first + size, first + 2 * size)]
    large.after(A_LONG_TIME, 2249, lambda: full)
    assert large.done == {0, 2}  # it has not grown by an eighth
    large.after(A_LONG_TIME, 2250, lambda: full)
    assert large.done == {0, 1, 2}


@needs_collapse
def test_a_page_is_made_when_enough_time_was_spent_on_tokens() -> None:
    memory = anonymous(4 * page_bytes())
    memory.write(b"x" * (4 * page_bytes()))
    large = LargeStates(memory, int(np.frombuffer(memory, np.uint8).ctypes.data))
    n_steps = 0
    while not large.done and n_steps < 100:
        large.after(0.01, FIRST_LENGTH, all_of(4 * page_bytes()))
        n_steps += 1
    assert n_steps == 4  # a millisecond is 3% of 33
    large.after(0.0, FIRST_LENGTH, all_of(4 * page_bytes()))
    assert len(large.done) == 1


@needs_collapse
def test_a_sequence_s_pages_become_large_while_tokens_are_generated() -> None:
    layout = StateLayout([KV(4, 64, 64), KV(4, 64, 64)], 8192, 64, KVCacheConfig.of("f16"))
    seq = Sequence(layout)
    assert seq._large is not None
    seq.stand_in(FIRST_LENGTH - 1)
    seq.after_step(A_LONG_TIME)
    assert not seq._large.done
    seq.clear()
    seq.stand_in(6000)
    for _ in range(100):
        seq.after_step(A_LONG_TIME)
    n_whole = (layout.nbytes - -seq.address % page_bytes()) // page_bytes()
    assert len(seq._large.done) == n_whole
    assert not np.any(np.concatenate(list(seq.filled())))
    seq.close()
    seq.after_step(A_LONG_TIME)


class _OldSystem:
    """Memory of a system that does not know the request, or has no large page free."""

    calls = 0

    def __len__(self) -> int:
        return 8 << 20

    def madvise(self, *arguments: int) -> None:
        self.calls += 1
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


@pytest.mark.skipif(not supported(), reason="no large pages here")
def test_a_system_that_refuses_is_asked_once() -> None:
    memory = _OldSystem()
    large = LargeStates(memory, 0)  # type: ignore[arg-type]
    for length in (5000, 6000, 7000):
        large.after(A_LONG_TIME, length, all_of(8 << 20))
    assert (memory.calls, large.done) == (1, set())


def test_without_large_pages_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgen.backends.cpu.large_states.supported", lambda: False)
    large = LargeStates(mmap.mmap(-1, 4096), 0)
    large.after(A_LONG_TIME, 1 << 20, lambda: pytest.fail("asked what is in use"))
