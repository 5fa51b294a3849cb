"""A long sequence's memory becomes large pages where it is mostly in use, and keeps what it holds."""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import pytest

from llmgen.backends.cpu.large_states import FIRST_LENGTH, LargeStates
from llmgen.backends.cpu.memory import anonymous
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.gguf.large_pages import page_bytes, supported
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV


def collapses() -> bool:
    """Whether this system makes large pages of memory in use (Linux 6.1)."""
    if not supported():
        return False
    memory = anonymous(2 * page_bytes())
    address = int(np.frombuffer(memory, np.uint8).ctypes.data)
    memory.write(b"x" * (2 * page_bytes()))
    large = LargeStates(memory, address)
    large.grow(FIRST_LENGTH, [(0, 2 * page_bytes())])
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
    large.grow(2000, iter(spans))
    assert large.done == {0, 2}
    assert large.due == 2500
    for start, stop in spans:
        np.testing.assert_array_equal(data[start:stop], written[start:stop])
    large.grow(4000, [(first + size, first + 2 * size)])
    assert large.done == {0, 1, 2}


@needs_collapse
def test_a_sequence_looks_at_its_pages_as_it_grows() -> None:
    layout = StateLayout([KV(4, 64, 64), KV(4, 64, 64)], 8192, 64, KVCacheConfig.of("f16"))
    seq = Sequence(layout)
    assert seq._large is not None
    seq.stand_in(FIRST_LENGTH - 1)
    assert not seq._large.done
    seq.clear()
    seq.stand_in(6000)
    n_whole = (layout.nbytes + seq.address % page_bytes()) // page_bytes() - bool(seq.address % page_bytes())
    assert len(seq._large.done) == n_whole
    assert not np.any(np.concatenate(list(seq.filled())))


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
    large.grow(5000, [(0, 8 << 20)])
    assert (memory.calls, large.done, large.due) == (1, set(), float("inf"))


def test_nothing_is_due_without_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgen.backends.cpu.large_states.supported", lambda: False)
    assert LargeStates(mmap.mmap(-1, 4096), 0).due == float("inf")
