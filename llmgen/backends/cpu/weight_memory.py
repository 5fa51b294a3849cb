"""Where the weights of a model lie: in the mapped file, or in a copy in large pages (gguf/large_pages.py).

On an Intel Xeon (two cores, plain read 31 GB/s) large pages make generated tokens 4 to 12% (135M) or 15% (1.5B,
Q4_K_M) faster.  The copy takes 0.3 seconds for each GB, or more than a second in a virtual machine whose host
provides memory on demand.
"""

from __future__ import annotations

import logging
import time
from typing import Literal, get_args

from llmgen.backends.cpu.memory import free_bytes
from llmgen.errors import LLMGenError, UsageError, shown
from llmgen.gguf import GGUFFile
from llmgen.gguf.large_pages import supported

Load = Literal["auto", "mmap", "memory"]

_LOADS: tuple[Load, ...] = get_args(Load)
_PATIENCE = 10e-9
"""How long "auto" waits: seconds spent on generated tokens, for each byte of the weights."""
_SHARE = 0.2
"""The share of the time of generated tokens that "auto" then spends on moving weights."""
_TRIALS = 3
"""How often a piece that was moved is compared with one that was not."""
_WORTH = 0.96
"""Weights are moved on if reading a moved piece takes at most this share of the time."""
_LEAST = 64 << 20
"""Bytes of the smallest model that "auto" moves: a smaller one stays in the caches of some processors."""

_log = logging.getLogger(__name__)


def checked_load(value: str) -> Load:
    """Raises UsageError for an unknown way to load weights, or one that this system does not support."""
    load = next((known for known in _LOADS if known == value), None)
    if load is None:
        raise UsageError(f"load (--load) is {shown(value)}, expected auto, mmap or memory")
    if load == "memory" and not supported():
        raise UsageError(
            "load (--load) is memory, which needs Linux and its transparent large pages "
            "(/sys/kernel/mm/transparent_hugepage/enabled) of at most 16 MiB each; choose mmap"
        )
    return load


def check_memory(file: GGUFFile, n_ctx: int, cache_bytes: int) -> None:
    """Raises LLMGenError where a copy of the weights and a full cache of so many bytes do not fit into memory."""
    free, weights = free_bytes(), file.large_pages.left
    if free is not None and weights + cache_bytes > free:
        raise LLMGenError(
            f"the weights take {weights / 2**20:,.0f} MiB and a cache of {n_ctx} tokens "
            f"{cache_bytes / 2**20:,.0f} MiB, but {free / 2**20:,.0f} MiB of memory are free; "
            "choose --load mmap or a smaller context (-c)"
        )


class WeightMemory:
    """Moves a model's weights into large pages: at once ("memory"), never ("mmap"), or where it pays ("auto").

    "auto" waits until tokens have been generated for ten times as long as the copy may take, so that short answers
    lose nothing.  Then it moves one piece, compares how fast that and the next one are read, and if the difference
    is worth it moves the others, a piece at a time between the runs, as long as half of the free memory has room.
    No thread of its own does that: a program that generates nothing moves nothing.
    """

    def __init__(self, file: GGUFFile, load: Load) -> None:
        self.load = load
        self._pages = file.large_pages
        self._active = load == "auto" and self._pages.left >= _LEAST
        self._pause = _PATIENCE * self._pages.left
        self._moved = False
        self.all_moved = False
        """Whether all weights lie in large pages because they were moved there."""
        self._trials: list[tuple[float, float]] = []

    def move_all(self, n_threads: int) -> None:
        """Move all weights now, with "auto" also without comparing, if there is room for them.

        Raises LLMGenError where "memory" finds too little of it.
        """
        if self.load != "memory" and not (self._active and self._has_room()):
            return
        try:
            self._pages.move_all(n_threads)
            self.all_moved = True
        except OSError as error:
            if self.load == "memory":
                raise LLMGenError(
                    f"the weights cannot be loaded into memory ({error}); choose --load mmap"
                ) from error
            _log.debug("weights stay in the mapped file: %s", error)

    def after(self, seconds: float) -> None:
        """Generated tokens took so long: move what is due."""
        if not self._active:
            return
        self._pause -= seconds
        if self._pause > 0:
            return
        started = time.perf_counter()
        self._active = self._step()
        self._pause += (time.perf_counter() - started) / _SHARE

    def _step(self) -> bool:
        """Move a piece, or compare; returns whether there is more to do."""
        if not self._has_room():
            return False
        if self._moved and len(self._trials) < _TRIALS:
            # a run lies between moving and this, so that neither piece is in the caches more than the other
            self._trials.append(self._pages.reading())
            return len(self._trials) < _TRIALS or self._pays()
        try:
            self._pages.move_one()
        except OSError as error:
            _log.debug("weights stay in the mapped file: %s", error)
        self._moved = True
        return self._pages.left > 0

    def _pays(self) -> bool:
        there, here = (min(times) for times in zip(*self._trials, strict=True))
        _log.debug(
            "a piece of the weights is read in %.2f ms from large pages, else in %.2f",
            1e3 * there,
            1e3 * here,
        )
        return there < _WORTH * here

    def _has_room(self) -> bool:
        free = free_bytes()
        return free is None or 2 * self._pages.left <= free
