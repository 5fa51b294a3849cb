"""The arguments of the sampler's kernels, by name, as arguments.py has those of the others.

A whole sampling step is one call (choice.py) with one table, ``Step``, and behind its address
``stages`` a record for each sampler in the chain: the stage's code and what its table names.
Python fills them in by name, which refuses what is missing or unknown; the kernel finds a
value at its place, which is the table's order.  A value has 8 bytes: a float64 where it says
``float``, else an int64.

A new stage is a table here, with its place in STAGES, a branch in choice.py, and a line in
sampling/stages.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple, TypeVar, cast


class Step(NamedTuple):
    """choice: what it is told, the memory it works in, and what it tells.

    n is the size of the vocabulary; all memory but the history is of that size where nothing
    else is said.
    """

    u: float  # the uniform draw
    mu: float  # Mirostat's, in bits
    xtc: Any  # 1: it is XTC's turn
    greedy: Any  # 1: take the largest; 0: draw
    stages: Any
    n_stages: Any
    allowed: Any  # bytes: 0 where a token may not come next; or 0 for none
    biased: Any  # int64 [n_biased]: distinct tokens ...
    biases: Any  # ... and what is added to their logits: float64
    n_biased: Any
    masked: Any  # int64 [n_masked]: tokens that may not come next
    n_masked: Any
    history: Any  # int64 [n_history]: the tokens so far; negative ones are never penalized
    n_history: Any
    repeats: Any  # DRY's penalties by length: float64
    breakers: Any  # bytes: 1 where a token is a breaker
    since: Any  # tokens since the last breaker
    zipf: Any  # ln((i + 2) / (i + 1)): float64 [100]

    work: Any  # float32
    ids: Any  # int64
    maxima: Any  # float32 [blocks][LANES]
    sums: Any  # float32 [blocks]
    keys: Any  # float32
    order: Any  # int64 [ORDER]
    marks: Any  # int32, zeros before and after
    spare: Any  # float32 [16]
    lengths: Any  # int32 [n_history]
    scratch: Any
    low: float
    ties: Any
    sum: float
    dot: float

    peak: float  # the largest logit; where that is not finite, there is no token
    share: float  # the chosen token's probability
    count: Any  # candidates that are left,
    whole: Any  # 1: all of the vocabulary; 0: those in ``ids``
    moved: Any  # 1: their logits are in ``work``; 0: as they were given
    divisor: float  # what is still to be done to them: (logit - peak) / divisor


class Penalties(NamedTuple):
    """Repetition, frequency and presence penalties."""

    last_n: float  # tokens of the history; -1: all
    repeat: float
    frequency: float
    presence: float


class Dry(NamedTuple):
    """DRY; its penalties by length are in Step.repeats."""

    last_n: float
    allowed: float  # repetitions up to this length are free
    longest: float  # no repetition counts as longer; -1: any


class TopNSigma(NamedTuple):
    """Top-n-sigma."""

    n: float


class TopK(NamedTuple):
    """Top-k."""

    k: float


class Typical(NamedTuple):
    """Locally typical."""

    p: float


class TopP(NamedTuple):
    """Top-p."""

    p: float


class MinP(NamedTuple):
    """Min-p."""

    ln_p: float


class Xtc(NamedTuple):
    """XTC, in the steps that Step.xtc marks."""

    threshold: float


class Temperature(NamedTuple):
    """Temperature."""

    divisor: float


class DynamicTemperature(NamedTuple):
    """A temperature that grows with the entropy."""

    low: float
    high: float
    exponent: float


class Mirostat1(NamedTuple):
    """Mirostat 1; the divisor is that of the temperature before it, or 1."""


class Mirostat2(NamedTuple):
    """Mirostat 2."""


STAGES: tuple[type[Any], ...] = (
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
    DynamicTemperature,
    Mirostat1,
    Mirostat2,
)
"""A stage's code is its table's place here."""
STAGE_BYTES = 8 * (1 + max(len(table._fields) for table in STAGES))
"""Of a stage's record: its code, and room for the longest table."""

SAMPLING_KERNELS = {"choice:choose": 3, "choice:head": 4}
"""The sampler's kernels and the number of their arguments."""

BLOCK = 512
"""Logits whose sums the kernels keep apart."""
LANES = 16
"""Groups in a block whose largest logits they find: every 16th of the block."""
BORDER = 256
"""The most candidates that they sort to find a border."""
ORDER = 1024
"""The most that they sort for their order's sake."""
FINE = 4096
"""Up to so many candidates they sum single weights in float64."""

Table = TypeVar("Table", bound=NamedTuple)


def offsets(table: type[Table], first: int = 0) -> Table:
    """Where each value of a table is, in bytes from its beginning (``first`` more values before), under its name.

    It is a module because Numba takes a module's numbers as constants; of a tuple it would build
    all values anew wherever one is used.
    """
    places = ModuleType(table.__name__)
    for i, name in enumerate(table._fields):
        setattr(places, name, 8 * (first + i))
    return cast(Table, places)
