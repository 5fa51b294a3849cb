"""What sampling and the generation loop need from a tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


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
