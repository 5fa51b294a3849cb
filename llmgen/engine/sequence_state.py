"""The tokens of a sequence, and how many of them the model has computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.interfaces import ModelLike, SequenceLike
from llmgen.errors import UsageError, shown
from llmgen.model.runs import Part
from llmgen.sampling.rejection import Guess

_log = logging.getLogger(__name__)
_FAR_APART = 4096  # tokens of a prompt without a checkpoint

Reuse = Literal["all", "prompt", "none"]


def checked_reuse(reuse: Reuse) -> Reuse:
    """How much of a cache may be reused.  Raises UsageError for what is no way of that."""
    if isinstance(reuse, str) and reuse in get_args(Reuse):
        return reuse
    raise UsageError(f"reuse must be all, prompt or none, not {shown(reuse)}")


OnPrompt = Callable[[int, int], object]
"""Called with how many of a prompt's tokens are in the cache, and how many there are: first before anything
is computed, then after each piece."""


class SequenceState:
    """The tokens of one sequence, the first :attr:`length` of which are in its cache.

    The cache's own length is the only truth about what has been computed, so an
    interruption at any point leaves both consistent.  After a run with guesses the cache holds these,
    too, at its end: they do not count until the answer reaches them, and :meth:`settle` cuts them off.
    """

    def __init__(self, model: ModelLike, seq: SequenceLike) -> None:
        self.model = model
        self.seq = seq
        self.tokens: list[int] = []
        self.ahead: list[Guess] = []
        """Guesses that are in the cache and do not count yet; the first is the last of the tokens, chosen meanwhile."""
        self._rows: list[NDArray[np.float32]] = []  # the logits after each of them
        self._n_as_prompt = 0  # leading tokens that were computed as prompt
        self.mark = 0
        """A length within the prompt to which the sequence will be cut back later."""

    @property
    def length(self) -> int:
        """How many tokens the cache holds, not counting guesses."""
        return int(self.seq.length) - len(self.ahead)

    @property
    def cached(self) -> int:
        """How many of the tokens are in the cache."""
        return min(self.length, len(self.tokens))

    def begin(self, ids: list[int], reuse: Reuse) -> int:
        """Take a new prompt; returns how many of its tokens stay in the cache.

        The last one is always computed again, because its logits are needed.
        """
        usable = {"all": self.cached, "prompt": min(self._n_as_prompt, self.cached), "none": 0}[reuse]
        same = common_prefix(ids, self.tokens[:usable])
        kept = self.cut(min(same, len(ids) - 1))
        if (
            kept and self.seq.needs_checkpoint
        ):  # where a turn of a conversation begins: what is taken back ends here
            self.seq.checkpoint()
        self.tokens = list(ids)
        _log.debug("prompt of %d tokens, %d of them in the cache", len(ids), kept)
        return kept

    def cut(self, n: int) -> int:
        """Cut the cache back to its first n tokens, or empty it if that is impossible."""
        self.settle()
        if n < self.length:
            self.seq.truncate(self.seq.cut_point(n))
        kept = self.length
        self._n_as_prompt = min(self._n_as_prompt, kept)
        return kept

    @property
    def n_missing(self) -> int:
        """How many of the tokens are not in the cache yet."""
        return max(0, len(self.tokens) - self.length)

    # ---- guesses --------------------------------------------------------------------

    def most_guesses(self, n: int) -> int:
        """How many tokens, up to n, can be guessed after the last one and cut off again."""
        n = min(n, self.model.n_ctx - len(self.tokens))
        return n if n > 0 and self.seq.can_take_back(n) else 0

    def part(self, guesses: Sequence[Guess] = ()) -> Part:
        """What a run of generated tokens computes: the last token and guesses after it, with the logits of all."""
        ids = self.tokens[-1:]
        if guesses:
            ids.extend(guess.token for guess in guesses)
        return Part(self.seq, ids, len(ids))

    def look_ahead(self, guesses: Sequence[Guess], rows: NDArray[np.float32]) -> None:
        """Guesses have been computed, and gave these logits, float32 [n, n_vocab], in place until they are kept."""
        self.ahead, self._rows = list(guesses), list(rows)

    def keep_rows(self) -> None:
        """Copy the logits, because their memory is about to be reused."""
        self._rows = [row.copy() for row in self._rows]

    def next_row(self) -> NDArray[np.float32]:
        """The first of the guesses is the token chosen last: it counts now.  The logits after it, float32 [n_vocab]."""
        del self.ahead[0]
        return self._rows.pop(0)

    def settle(self) -> None:
        """Cut off the guesses."""
        n = self.length
        self.ahead, self._rows = [], []
        if n < self.seq.length:
            self.seq.truncate(n)

    # ---- prompts --------------------------------------------------------------------

    def prefill(self, end: int, wants_logits: bool) -> NDArray[np.float32] | None:
        """Compute the next of the first ``end`` tokens as prompt, as many as one run of the model takes.

        Returns float32 [n_vocab] of the last one where it was reached and its logits are wanted, else None.
        Where earlier lengths need checkpoints, there is one before the last token, since the same prompt
        again needs its logits, one at the mark, and some on the way through a long prompt.
        """
        start = int(self.seq.length)
        stop = min(end, start + self.model.max_prompt_tokens)
        if self.seq.needs_checkpoint:
            stop = min([stop, *(length for length in (self.mark, end - 1) if length > start)])
        n_logits = int(wants_logits and stop == end)
        rows = self.model.forward([Part(self.seq, self.tokens[start:stop], n_logits)], "prompt")
        self._computed_as_prompt(start, stop)
        if self.seq.needs_checkpoint:
            far = stop - self.seq.cut_point(stop - 1) >= _FAR_APART
            if far or stop in (self.mark, end - 1):
                self.seq.checkpoint()
        return cast(NDArray[np.float32], rows[0]) if n_logits else None

    def _computed_as_prompt(self, start: int, stop: int) -> None:
        _log.debug(
            "computed %d tokens of the prompt, %d of %d are done", stop - start, stop, len(self.tokens)
        )
        if self._n_as_prompt == start:
            self._n_as_prompt = stop

    def shift(self, keep: int) -> None:
        """Drop the oldest half of the computed tokens after the first ``keep``.

        What follows them is to be computed anew, at its new positions: entries
        that were computed in view of the dropped tokens would not be true.  So are those of the
        first ones that were generated, so that all is as in a fresh run over the kept tokens.
        """
        keep = min(keep, self.cached // 2)
        drop = max(1, (self.cached - keep) // 2)
        _log.debug("context full: dropping %d tokens after the first %d", drop, keep)
        self.cut(min(keep, self._n_as_prompt))
        del self.tokens[keep : keep + drop]

    def clear(self) -> None:
        """Forget everything."""
        self.cut(0)
        self.tokens = []

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, or all if there are fewer."""
        keep = max(0, len(self.tokens) - n)
        self.cut(min(keep, self.cached))
        del self.tokens[keep:]

    def save(self, path: Path) -> None:
        """Write the tokens that are in the cache, and the cache, to a file."""
        self.model.check_file()
        self.settle()
        n = self.cached
        _log.debug("writing %d tokens to the prompt cache %s", n, path)
        self.model.save_sequence(path, self.seq, self.tokens[:n], min(self._n_as_prompt, n))

    def load(self, path: Path) -> None:
        """Take tokens and cache from a file instead of what is there."""
        self.clear()
        stored = self.model.load_sequence(path, self.seq)
        self.tokens = stored.tokens
        self._n_as_prompt = stored.n_prompt
        _log.debug("read %d tokens from the prompt cache %s", len(self.tokens), path)

    def fork(self) -> SequenceState:
        """An independent copy."""
        twin = SequenceState(self.model, self.seq.fork())
        if self.ahead:
            twin.seq.truncate(self.length)
        twin.tokens = list(self.tokens)
        twin._n_as_prompt = self._n_as_prompt
        return twin

    def become(self, other: SequenceState) -> None:
        """Become a copy of another one; what both begin with is not copied.

        Only for two whose tokens were computed in the same roles, such as those of one search.
        """
        same = common_prefix(self.tokens[: self.cached], other.tokens[: other.cached])
        self.seq.become(other.seq, same)
        self.tokens = list(other.tokens)
        self._n_as_prompt = other._n_as_prompt


def prefill_together(states: Sequence[SequenceState]) -> NDArray[np.float32]:
    """Compute what is missing of several short prompts of one model, in one run.

    Returns float32 [n, n_vocab], of each one's last token what ``prefill`` would give.
    """
    starts = [int(state.seq.length) for state in states]
    parts = [Part(state.seq, state.tokens[start:]) for state, start in zip(states, starts, strict=True)]
    rows = states[0].model.forward(parts, "prompt")
    for state, start in zip(states, starts, strict=True):
        state._computed_as_prompt(start, len(state.tokens))
    return cast(NDArray[np.float32], rows)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading items are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
