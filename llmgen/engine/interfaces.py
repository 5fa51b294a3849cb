"""What the generation loop needs from a model, its cache and its tokenizer.

The classes that do the work are :class:`llmgen.backends.cpu.model.Model`,
:class:`llmgen.backends.cpu.sequence.Sequence` and :class:`llmgen.tokenizer.Tokenizer`; the loop
is written against these protocols, so that it can be read and tested without
loading any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from llmgen.model.runs import Part, Role
from llmgen.tokenizer.interfaces import StreamDecoderLike, TokenizerLike

__all__ = ["ModelLike", "StreamDecoderLike", "TokenizerLike"]


class ModelLike(Protocol):
    """Token ids in, logits out; see ``llmgen.backends.cpu.model.Model``.

    A sequence is the backend's own: it has ``length``, ``cut_point``, ``truncate``, ``clear``,
    ``checkpoint``, ``fork``, ``become`` and ``close``.
    """

    @property
    def n_ctx(self) -> int: ...

    @property
    def config(self) -> Any: ...

    def new_sequence(self) -> Any: ...

    def forward(
        self, parts: Sequence[Part], role: Role, read: Callable[[NDArray[np.float32]], Any] = ...
    ) -> Any: ...

    @property
    def max_prompt_tokens(self) -> int: ...

    def prefill(
        self, seq: Any, ids: list[int], logits: Literal["last", "all", "none"] = "last"
    ) -> NDArray[np.float32] | None: ...

    def save_sequence(self, path: Path, seq: Any, tokens: Sequence[int], n_prompt: int) -> None: ...

    def load_sequence(self, path: Path, seq: Any) -> Any: ...

    def cancel(self) -> None: ...

    def check_file(self) -> None:
        """Raise where what was computed cannot be trusted, because the file has changed."""
