"""Sequence breakers: where a repetition ends for DRY ("don't repeat yourself").

Source: p-e-w's proposal for text-generation-webui (2024) and llama.cpp's sampler
of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Breakers:
    """How far back a repetition may reach: not past a sequence breaker.

    Counts the tokens since the last one in which a breaker text ended.  It looks
    at bytes, so a breaker may be part of a token or spread over several.
    """

    def __init__(self, texts: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._breakers = [text.encode() for text in texts]
        self._token_bytes = token_bytes
        self._tail_size = max((len(b) for b in self._breakers), default=1) - 1
        self._tail = b""
        self.since = 0

    def push(self, token: int) -> None:
        """Record the next token of the history."""
        piece = self._token_bytes(token)
        text = self._tail + piece
        self.since = 0 if any(b in text for b in self._breakers) else self.since + 1
        # a breaker that lies wholly in the old tail was counted with its own token
        self._tail = text[len(text) - self._tail_size :] if self._tail_size else b""
        if self.since == 0:
            self._tail = b""

    def inside(self, token: int) -> bool:
        """Whether a token alone contains a breaker (such a token is never penalized)."""
        piece = self._token_bytes(token)
        return any(b in piece for b in self._breakers)
