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
    that a text has to be computed in one run.  every: tokens that share a key, which is one of
    their summaries (``Ops.summarize``); there is none yet for tokens behind the last whole stretch.
    """

    n_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    causal: bool = True
    every: int = 1

    def __post_init__(self) -> None:
        if self.window and (not self.causal or self.every > 1):
            raise ValueError("a window needs causal order, and keys of single tokens")


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
class Contents:
    """Of one layer what is key and value of all heads at once, appended token by token (DeepSeek V4).

    dim: its values.  A query sees the last ``window`` tokens, and a summary of each whole stretch
    of ``every`` tokens up to its own (``Ops.summarize``), or some of these; every: 0 for no summaries.
    """

    dim: int
    window: int
    every: int = 0


@dataclass(frozen=True)
class Recurrent:
    """A state of fixed size that every token replaces: ``rows`` rows of ``n`` float32 values, zeros at first.

    It cannot be cut back to an earlier length, except to one at which it was copied.
    """

    n: int
    rows: int = 1


def sums(n: int, overlapping: bool = False) -> Recurrent:
    """The state of ``Ops.summarize`` for summaries of n values.

    Rows: the largest score so far, the sum of e^(score - largest), and the values weighted with
    that; overlapping: of the stretch before, then of the present one for the stretch behind it, then its own.
    """
    return Recurrent(n, 9 if overlapping else 3)


State = KV | Latent | Contents | Recurrent
