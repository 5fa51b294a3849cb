"""What the engine needs from a model, its sequences and its tokenizer.

The engine is written against these protocols, so that it can be read and tested without a
backend; ``llmgen.backends.cpu.model.Model``, ``llmgen.backends.cpu.sequence.Sequence`` and
:class:`llmgen.tokenizer.Tokenizer` have what they ask for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmgen.model.runs import Part, Role
from llmgen.tokenizer.interfaces import StreamDecoderLike, TokenizerLike

__all__ = ["ModelLike", "SequenceLike", "StreamDecoderLike", "TokenizerLike"]


class SequenceLike(Protocol):
    """One sequence of tokens and what a model remembers of it; made by ``ModelLike.new_sequence``."""

    length: int
    """Tokens that are computed."""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether it can be cut back only to a :meth:`checkpoint`, or to nothing."""

    def checkpoint(self) -> None:
        """Make the current length one that it can be cut back to."""

    def cut_point(self, n: int) -> int:
        """The largest length up to n that it can be cut back to; 0 is always one."""

    def can_take_back(self, n: int) -> bool:
        """Whether n tokens could be cut off again if they were appended now."""

    def truncate(self, n: int) -> None: ...

    def stand_in(self, n: int) -> None:
        """Treat n tokens as computed, whatever the states hold, to measure what the next ones cost."""

    def clear(self) -> None: ...

    def fork(self) -> Any:
        """An independent copy."""

    def become(self, other: Any, common: int) -> None:
        """Become a copy of another sequence, whose first ``common`` tokens this one already has."""

    def close(self) -> None: ...


class ModelLike(Protocol):
    """Token ids in, logits out."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def config(self) -> Any: ...

    @property
    def lock(self) -> threading.RLock:
        """Held during a call, and by code that reads or frees a sequence's memory while calls may be running."""

    @property
    def max_prompt_tokens(self) -> int:
        """Prompt tokens that one call of ``forward`` takes."""

    @property
    def max_outputs(self) -> int:
        """For how many tokens one call of ``forward`` gives logits."""

    def new_sequence(self) -> Any: ...

    def forward(
        self, parts: Sequence[Part], role: Role, read: Callable[[NDArray[np.float32]], Any] = ...
    ) -> Any:
        """Compute tokens; returns what ``read`` makes of the logits, by default a copy of them."""

    def save_sequence(self, path: Path, seq: Any, tokens: Sequence[int], n_prompt: int) -> None: ...

    def load_sequence(self, path: Path, seq: Any) -> Any: ...

    def cancel(self) -> None:
        """Stop the running call, which raises Interrupted; from any thread."""

    def check_file(self) -> None:
        """Raise if what was computed cannot be trusted because the file has changed."""
