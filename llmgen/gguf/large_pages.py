"""Moving a mapped file into memory in large pages, piece by piece, while it is in use; Linux only.

A processor that reads weights at the speed of memory also looks up the address of each 4 KB page that it reads.
The system maps a file in such pages unless it has read it from the disk in large ones, which it does only for
some file systems and never for what its cache holds already.  Anonymous memory comes in large pages for the
asking (madvise(2), MADV_HUGEPAGE).  So a piece is copied there, and mremap(2) puts the copy where the file was
mapped: addresses stay valid, and a thread that reads there meanwhile finds one or the other, which are equal.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llmgen.gguf.mapping import MappedFile

PIECE = 16 << 20
"""Bytes that are moved at once: a few milliseconds."""

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_READ_WRITE = 3  # PROT_READ | PROT_WRITE
_READ = 1
_TO_A_PLACE = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_FAILED = ctypes.c_void_p(-1).value


class LargePages:
    """The pieces of mapped files that are not in large pages yet."""

    def __init__(self, files: Iterable[MappedFile]) -> None:
        """Nothing is moved yet.  Where large pages are not to be had there are no pieces."""
        self._left = [piece for file in files for piece in _pieces(file)]
        self._moved: tuple[MappedFile, int] | None = None  # the piece that was moved last

    @property
    def left(self) -> int:
        """The bytes that have not been moved."""
        return PIECE * len(self._left)

    def stop(self) -> None:
        """Move nothing more."""
        self._left.clear()

    def move_one(self) -> None:
        """Move one piece.  Raises OSError, and moves nothing more, where the system refuses that."""
        try:
            piece = self._left.pop()
        except IndexError:  # another model of the file has taken the last one
            return
        with self._stopped_by_errors():
            _move(*piece)
            self._moved = piece

    def move_all(self, n_threads: int) -> None:
        """Move all that is left.  Raises OSError as ``move_one`` does."""
        pieces, self._left = self._left, []
        with self._stopped_by_errors(), ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(lambda piece: _move(*piece), pieces))

    @contextmanager
    def _stopped_by_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.stop()
            raise

    def reading(self) -> tuple[float, float]:
        """Seconds that reading the piece takes that was moved last, and the one that would be the next."""
        moved, following = self._moved, self._left[-1:]
        if moved is None or not following:
            return 0.0, 0.0
        return _seconds_of_reading(*moved), _seconds_of_reading(*following[0])


@cache
def supported() -> bool:
    """Whether the system gives memory in large pages to a process that asks for them."""
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        enabled = "[never]" not in (_SETTINGS / "enabled").read_text()
        return enabled and page_bytes() <= PIECE
    except (OSError, ValueError):
        return False


@cache
def page_bytes() -> int:
    """The size of a large page.  Only where they are :func:`supported`."""
    return int((_SETTINGS / "hpage_pmd_size").read_text())


def _pieces(file: MappedFile) -> list[tuple[MappedFile, int]]:
    """Where the whole pieces of a file begin, the last first; they are aligned in memory."""
    if not supported():
        return []
    first = -file.address % page_bytes()
    return [(file, at) for at in range(first, file.size - PIECE + 1, PIECE)][::-1]


def _move(file: MappedFile, at: int) -> None:
    """Put a copy of the piece of the file at ``at`` in its place.

    After Ctrl-C in the middle the copy is lost, not freed: it may be in its place already, and its old address in use.
    """
    libc = _libc()
    page = page_bytes()
    room = libc.mmap(None, PIECE + page, _READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == _FAILED:
        raise _error("mmap")
    copy = -(-room // page) * page
    for start, end in ((room, copy), (copy + PIECE, room + PIECE + page)):
        if end > start:
            libc.munmap(start, end - start)
    try:
        if libc.madvise(copy, PIECE, mmap.MADV_HUGEPAGE):
            raise _error("madvise")
        file.read_into(memoryview((ctypes.c_char * PIECE).from_address(copy)).cast("B"), at)
        if libc.mprotect(copy, PIECE, _READ):
            raise _error("mprotect")
        if libc.mremap(copy, PIECE, PIECE, _TO_A_PLACE, file.address + at) == _FAILED:
            raise _error("mremap")
    except OSError:
        libc.munmap(copy, PIECE)
        raise


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = [address, size, number, number, number, ctypes.c_long], address
    libc.mremap.argtypes, libc.mremap.restype = [address, size, size, number, address], address
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = libc.mprotect.argtypes = [address, size, number]
    return libc


def _seconds_of_reading(file: MappedFile, at: int) -> float:
    started = time.perf_counter()
    np.sum(file.bytes[at : at + PIECE].view(np.uint64))
    return time.perf_counter() - started
