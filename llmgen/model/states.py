"""What a sequence remembers between runs, layer by layer.

An architecture lists the states it needs (``Decoder.states``).  These classes say what a
state holds; a backend decides its place in memory and its number format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KV:
    """The keys and values of one attention layer, appended token by token.

    window: keys that a query sees, its own included; 0: all of them.  chunked: the window
    does not slide; a query sees the keys from the last multiple of ``window`` on.
    causal: a query sees no key behind its own; otherwise it sees those of its whole run, so
    that a text has to be computed in one run.
    """

    n_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    causal: bool = True

    def __post_init__(self) -> None:
        if self.window and not self.causal:
            raise ValueError("a window needs causal order")


@dataclass(frozen=True)
class Latent:
    """What the keys and values of all heads of one layer are projected from, appended token by token.

    content_dim: values of the content, from which keys and values are projected (DeepSeek V2's
    compressed c^KV, arXiv:2405.04434); position_dim: values of the rotated part of the keys, which
    all heads share.  Both parts are kept apart, so that each can have a number format of its own.
    window: as in ``KV``.
    """

    content_dim: int
    position_dim: int
    window: int = 0


@dataclass(frozen=True)
class Recurrent:
    """A state of fixed size that every token replaces: ``rows`` rows of ``n`` float32 values, zeros at first.

    It cannot be cut back to an earlier length, except to one at which it was copied.
    """

    n: int
    rows: int = 1


State = KV | Latent | Recurrent
