"""The memory of a long sequence in large pages, as it fills; Linux only.

Each head's keys and values lie in a stretch of their own, so that attention reads from many places, and the
processor looks up the address of every 4 KB page there.  A large page (2 MB) that is mostly in use is better made of
the small ones; from the beginning it would take memory, and the time to clear it, that a short answer never needs.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterable

from llmgen.gguf.large_pages import page_bytes, supported

FIRST_LENGTH = 1024
"""Tokens of a sequence before which its pages are not looked at; then whenever it has grown by a quarter."""
_COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), Linux 6.1; the mmap module does not name it


class LargeStates:
    """Which pages of a sequence's memory have become large."""

    def __init__(self, memory: mmap.mmap, address: int) -> None:
        """``address``: where the memory begins."""
        self._memory = memory
        self._first = -address % page_bytes() if supported() else 0
        self.due: float = FIRST_LENGTH if supported() else float("inf")
        """The length of the sequence from which on :meth:`grow` has something to do."""
        self.done: set[int] = set()
        """The pages that are large, by number."""

    def grow(self, length: int, spans: Iterable[tuple[int, int]]) -> None:
        """Make large pages of those that are at least half in use; ``spans`` of bytes are."""
        self.due = length * 5 // 4
        size = page_bytes()
        used: Counter[int] = Counter()
        for first, last in spans:
            for page in range((first - self._first) // size, -(-(last - self._first) // size)):
                start = self._first + page * size
                used[page] += min(last, start + size) - max(first, start)
        last_whole = (len(self._memory) - self._first) // size - 1
        for page, nbytes in used.items():
            if 2 * nbytes >= size and 0 <= page <= last_whole and page not in self.done:
                try:
                    self._memory.madvise(_COLLAPSE, self._first + page * size, size)
                except OSError:  # an older system, or no memory in one piece
                    self.due = float("inf")
                    return
                self.done.add(page)
