"""The memory of a long sequence in large pages, made while tokens are generated; Linux only.

Each head's keys and values lie in a stretch of their own, so that attention reads from many places, and the
processor looks up the address of every 4 KB page there.  A large page (2 MB) that is mostly in use is better made of
the small ones; from the beginning it would take memory, and the time to clear it, that a short answer never needs.
Making one copies it, in 0.7 ms, or in ten times that where a virtual machine gets its memory only then.  So only
a small share of the time of generated tokens is spent on it.
"""

from __future__ import annotations

import mmap
import time
from collections import Counter
from collections.abc import Callable, Iterable

from llmgen.gguf.large_pages import page_bytes, supported

FIRST_LENGTH = 1024
"""Tokens of a sequence from which on its pages are looked at; again whenever it has grown by an eighth."""
_SHARE = 0.03
"""Of the time of generated tokens: what may be spent."""
_FIRST_PRICE_S = 0.001
"""What a page is taken to cost before one was made."""
_COLLAPSE = 25  # MADV_COLLAPSE of madvise(2), Linux 6.1; the mmap module does not name it

Spans = Callable[[], Iterable[tuple[int, int]]]


class LargeStates:
    """Which pages of a sequence's memory have become large, and when the next one may."""

    def __init__(self, memory: mmap.mmap, address: int) -> None:
        """``address``: where the memory begins."""
        self.done: set[int] = set()
        """The pages that are large, by number."""
        self._memory = memory
        self._first = -address % page_bytes() if supported() else 0
        self._due: float = FIRST_LENGTH if supported() else float("inf")
        self._waiting: list[int] = []  # pages that are to become large
        self._saved_s, self._price_s = 0.0, _FIRST_PRICE_S

    def after(self, seconds: float, length: int, spans: Spans) -> None:
        """A token was generated in ``seconds``: make a page large if that is due and paid for.

        ``length``: tokens of the sequence now; ``spans`` tells where bytes of the memory are in use.
        """
        if length < self._due and not self._waiting:
            return
        self._saved_s += _SHARE * seconds
        if self._saved_s < self._price_s:
            return
        if not self._waiting:
            self._due = length * 9 // 8
            self._waiting = self._half_used(spans())
        if self._waiting:
            self._make_large(self._waiting.pop())

    def _half_used(self, spans: Iterable[tuple[int, int]]) -> list[int]:
        """The pages that are at least half in use and not large yet."""
        size = page_bytes()
        used: Counter[int] = Counter()
        for first, last in spans:
            for page in range((first - self._first) // size, -(-(last - self._first) // size)):
                start = self._first + page * size
                used[page] += min(last, start + size) - max(first, start)
        n_whole = (len(self._memory) - self._first) // size
        return [
            page
            for page, n in used.items()
            if 2 * n >= size and 0 <= page < n_whole and page not in self.done
        ]

    def _make_large(self, page: int) -> None:
        started = time.perf_counter()
        try:
            self._memory.madvise(_COLLAPSE, self._first + page * page_bytes(), page_bytes())
        except OSError:  # an older system, or no memory in one piece
            self._due, self._waiting = float("inf"), []
            return
        self.done.add(page)
        self._price_s = time.perf_counter() - started
        self._saved_s -= self._price_s
