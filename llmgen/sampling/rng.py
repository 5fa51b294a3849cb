"""Random numbers that depend on the seed and the step, and on nothing else.

Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds of
multiplication and exclusive or turn (seed, step, lane) into 128 random bits.
There is no state to carry along, so a sequence draws the same numbers alone, in
a batch, or after a restart, and no library's update can change them.
"""

from __future__ import annotations

import secrets
from typing import Any

_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_KEY_STEP_0, _KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10

LANE_TOKEN = 0
"""The lane of the draw that picks the token."""
LANE_XTC = 1
"""The lane of the draw that decides whether XTC acts at a step."""
LANE_ACCEPT = 2
"""The lane of the draw that accepts or rejects a guess."""
LANE_GUESS = 3
"""The lane of the draw that chooses a guess for rejection sampling."""


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Four random 32-bit words for a counter and a key of 32-bit words.

    The counter's words are Python ints (or numpy uint64 arrays of one shape, for many counters
    at once, as the tests have them).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0, k1 = (k0 + _KEY_STEP_0) & _MASK, (k1 + _KEY_STEP_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, step: int, lane: int = LANE_TOKEN) -> float:
    """The draw of one step: a multiple of 2**-53 in [0, 1).

    ``seed`` and ``step`` are taken modulo 2**64.
    """
    counter = (step & _MASK, (step >> 32) & _MASK, lane, 0)
    a, b, _, _ = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return ((a << 21) | (b >> 11)) * 2.0**-53


def random_seed() -> int:
    """A fresh seed, of 32 bits so that a person can type it again."""
    return secrets.randbits(32)
