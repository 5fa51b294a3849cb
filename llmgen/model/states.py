"""What a sequence has to remember between two runs, layer by layer.

An architecture lists the states it needs (``Decoder.states``).  These classes say what a
state holds; a backend decides where it lies and in which number format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KV:
    """The keys and values of one attention layer, concatenated token by token.

    window: keys that a query sees, its own included; 0: all of them.
    """

    n_heads: int
    key_dim: int
    value_dim: int
    window: int = 0


@dataclass(frozen=True)
class Recurrent:
    """A state of fixed size that every token replaces: ``n`` float32 values.

    It cannot be cut back to an earlier length, except to one at which a copy was kept.
    """

    n: int


State = KV | Recurrent
