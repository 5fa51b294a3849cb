"""What the generation loop needs from a model, its cache and its tokenizer.

The classes that do the work are :class:`llmgen.model.Model`,
:class:`llmgen.model.Sequence` and :class:`llmgen.tokenizer.Tokenizer`; the loop
is written against these protocols, so that it can be read and tested without
loading any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray


class SequenceLike(Protocol):
    """The key-value cache of one sequence of tokens."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    @property
    def min_truncate(self) -> int:
        """The smallest length it can be cut back to without being cleared."""

    def truncate(self, n: int, /) -> None: ...
    def clear(self) -> None: ...
    def fork(self) -> Any: ...
    def become(self, other: Any, common: int, /) -> None: ...
    def close(self) -> None: ...


class ModelLike(Protocol):
    """Token ids in, logits out; see ``llmgen.model.Model``."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def config(self) -> Any: ...

    def new_sequence(self) -> Any: ...

    def prefill(
        self, seq: Any, ids: list[int], logits: Literal["last", "all", "none"] = "last"
    ) -> NDArray[np.float32] | None: ...

    @property
    def max_together(self) -> int: ...

    def prefill_together(self, prompts: list[tuple[Any, Sequence[int]]]) -> NDArray[np.float32]: ...

    def decode(self, seqs: list[Any], ids: list[int], *, copy: bool = True) -> NDArray[np.float32]: ...

    def cancel(self) -> None: ...

    def check_file(self) -> None:
        """Raise where what was computed cannot be trusted, because the file has changed."""


class StreamDecoderLike(Protocol):
    """Token ids to text, never half a character."""

    def push(self, token_id: int, /) -> str: ...
    def finish(self) -> str: ...


class TokenizerLike(Protocol):
    """The part of a tokenizer that the loop uses."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def eog_ids(self) -> Collection[int]: ...

    @property
    def bos_id(self) -> int | None:
        """The begin-of-text token."""

    @property
    def add_bos(self) -> bool:
        """Whether the model wants it at the beginning of every text."""

    def encode_prompt(self, text: str, parse_special: bool = False) -> list[int]: ...
    def encode_fragment(self, text: str, /) -> list[int]: ...
    def cut_control(self, text: str, /) -> list[str | int]: ...
    def token_bytes(self, token_id: int, /) -> bytes: ...

    def stream_decoder(self, skip_special: bool = False, continuation: bool = False) -> StreamDecoderLike: ...
