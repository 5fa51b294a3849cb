"""Token ids and the cache entries computed for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.interfaces import ModelLike
from llmgen.engine.stopping import Interruptible
from llmgen.errors import Interrupted
from llmgen.model.runs import Part

_log = logging.getLogger(__name__)

Reuse = Literal["all", "prompt", "none"]

OnPrompt = Callable[[int, int], object]
"""Called with how many of a prompt's tokens are in the cache, and how many there are: first before anything
is computed, then after each piece."""

_PREFILL_CHUNK = 512
"""Prompt tokens per model call: other users of the model, and who watches, wait no longer than that."""


class CachedTokens:
    """The tokens of one sequence, the first ``seq.length`` of which are in its cache.

    The cache's own length is the only truth about what has been computed, so an
    interruption at any point leaves both consistent.
    """

    def __init__(self, model: ModelLike, seq: Any) -> None:
        self.model = model
        self.seq = seq
        self.tokens: list[int] = []
        self._prompt_role = 0  # leading tokens that were computed as prompt

    @property
    def cached(self) -> int:
        """How many of the tokens are in the cache."""
        return min(int(self.seq.length), len(self.tokens))

    def begin(self, ids: list[int], reuse: Reuse) -> int:
        """Take a new prompt; returns how many of its tokens stay in the cache.

        The last one is always computed again, because its logits are needed.
        """
        usable = {"all": self.cached, "prompt": min(self._prompt_role, self.cached), "none": 0}[reuse]
        same = common_prefix(ids, self.tokens[:usable])
        kept = self.cut(min(same, len(ids) - 1))
        self.tokens = list(ids)
        _log.debug("prompt of %d tokens, %d of them in the cache", len(ids), kept)
        return kept

    def cut(self, n: int) -> int:
        """Cut the cache back to its first n tokens, or empty it where that is impossible."""
        if n < self.seq.length:
            self.seq.truncate(self.seq.cut_point(n))
        kept = int(self.seq.length)
        self._prompt_role = min(self._prompt_role, kept)
        return kept

    def prefill(
        self,
        calls: Interruptible,
        logits: Literal["last", "none"] = "last",
        at_most: int | None = None,
        on_prompt: OnPrompt | None = None,
    ) -> NDArray[np.float32] | None:
        """Compute the tokens that are not in the cache yet, or the next ``at_most`` of them.

        Returns float32 [n_vocab] of the last one, or None, as also where some are left.
        """
        row, before, started = None, self.cached, time.perf_counter()
        end = len(self.tokens) if at_most is None else min(len(self.tokens), int(self.seq.length) + at_most)
        if on_prompt:
            on_prompt(before, len(self.tokens))
        while (start := int(self.seq.length)) < end:
            ids = self.tokens[start : min(end, start + _PREFILL_CHUNK)]
            last = start + len(ids) == len(self.tokens)
            row = calls.call(self.model.prefill, self.seq, ids, logits if last else "none")
            if self._prompt_role == start:
                self._prompt_role = start + len(ids)
            if on_prompt:
                on_prompt(self.cached, len(self.tokens))
            if not last and calls.due():
                raise Interrupted("the prompt's computation was stopped: run it again to go on")
        _log.debug("computed %d tokens in %.3f s", self.cached - before, time.perf_counter() - started)
        return row

    @property
    def n_missing(self) -> int:
        """How many of the tokens are not in the cache yet."""
        return len(self.tokens) - self.cached

    def decode(self, calls: Interruptible) -> NDArray[np.float32]:
        """Compute the last token, a generated one, the only one that is missing: float32 [n_vocab]."""
        part = Part(self.seq, self.tokens[-1:])
        row: NDArray[np.float32] = calls.call(self.model.forward, [part], "generated")[0]
        return row

    def shift(self, keep: int) -> None:
        """Drop the oldest half of the computed tokens after the first ``keep``.

        What follows them is to be computed anew, at its new positions: entries
        that were computed in view of the dropped tokens would not be true.
        """
        keep = min(keep, self.cached // 2)
        drop = max(1, (self.cached - keep) // 2)
        _log.debug("context full: dropping %d tokens after the first %d", drop, keep)
        self.cut(keep)
        del self.tokens[keep : keep + drop]

    def clear(self) -> None:
        """Forget everything."""
        self.cut(0)
        self.tokens = []

    def rewind(self, n: int) -> None:
        """Forget the last n tokens (all, where there are fewer)."""
        keep = max(0, len(self.tokens) - n)
        self.cut(min(keep, self.cached))
        del self.tokens[keep:]

    def save(self, path: Path) -> None:
        """Write what is in the cache to a file; see ``llmgen.backends.cpu.cache_file``."""
        self.model.check_file()
        n = self.cached
        _log.debug("writing %d tokens to the prompt cache %s", n, path)
        self.model.save_sequence(path, self.seq, self.tokens[:n], min(self._prompt_role, n))

    def load(self, path: Path) -> None:
        """Take tokens and cache from a file instead of what is there."""
        self.clear()
        stored = self.model.load_sequence(path, self.seq)
        self.tokens = stored.tokens
        self._prompt_role = stored.n_prompt
        _log.debug("read %d tokens from the prompt cache %s", len(self.tokens), path)

    def fork(self) -> CachedTokens:
        """An independent copy."""
        twin = CachedTokens(self.model, self.seq.fork())
        twin.tokens = list(self.tokens)
        twin._prompt_role = self._prompt_role
        return twin

    def become(self, other: CachedTokens) -> None:
        """Be a copy of another one; what both begin with is not copied.

        Only for two whose tokens were computed in the same roles, such as those of one search.
        """
        same = common_prefix(self.tokens[: self.cached], other.tokens[: other.cached])
        self.seq.become(other.seq, same)
        self.tokens = list(other.tokens)
        self._prompt_role = other._prompt_role


def prefill_together(caches: Sequence[CachedTokens], calls: Interruptible) -> NDArray[np.float32]:
    """Compute what is missing of several short prompts of one model, in one pass.

    Returns float32 [n, n_vocab], of each one's last token what ``prefill`` would give.
    """
    starts = [int(cache.seq.length) for cache in caches]
    parts = [Part(cache.seq, cache.tokens[start:]) for cache, start in zip(caches, starts, strict=True)]
    rows = calls.call(caches[0].model.forward, parts, "prompt")
    for cache, start in zip(caches, starts, strict=True):
        if cache._prompt_role == start:
            cache._prompt_role = len(cache.tokens)
    return cast(NDArray[np.float32], rows)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
