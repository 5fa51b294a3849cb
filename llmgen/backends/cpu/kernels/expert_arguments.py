"""The arguments of the steps for mixtures of experts; see arguments.py, whose words hold here too.

``routing`` is the address of a routing block (routing.py).  ``control`` is one as well where
a step takes rows instead of tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


class Choose(NamedTuple):
    """expert_choice:choose: which experts a token takes, and their weights."""

    logits: Any  # float32 [tokens][n_experts]
    logits_stride: Any
    n_experts: Any
    n_used: Any
    scores: Any  # its place in SCORES
    bias: Any  # 0, or float32 [n_experts]: added to the scores for the choice alone
    n_groups: Any
    n_groups_used: Any
    normalize: Any  # 1: the weights are divided by their sum
    scale: float
    shared_by: Any  # neighbours that stand for one expert
    ids: Any  # int64 [tokens][n_used]
    ids_stride: Any
    weights: Any  # float32 [tokens][n_used]
    weights_stride: Any
    scratch: Any  # choose_scratch(n_experts, n_groups) bytes
    split_tokens: Any
    control: Any


SCORES = ("softmax", "sigmoid", "softmax_chosen", "sqrt_softplus")
"""Which scores weigh the experts, as in ``model.ops``."""


def choose_scratch(n_experts: int, n_groups: int) -> int:
    """Bytes of float32 scores and keys of the experts, in whole vectors, and keys of the groups."""
    return 2 * (-(-n_experts // 16) * 64) + 4 * n_groups + 64


class Sort(NamedTuple):
    """experts:sort: fills a routing block from what the tokens chose."""

    ids: Any  # as in Choose
    ids_stride: Any
    n_used: Any
    n_experts: Any
    unit: Any  # an expert's rows start at a multiple of it
    next_rows: Any  # bytes from the block to its parts, see routing.py
    pair_rows: Any
    row_tokens: Any
    routing: Any
    control: Any


class Gather(NamedTuple):
    """experts:gather: out[row] = x[token of the row], times its weight if there are weights."""

    x: Any
    x_stride: Any
    weights: Any  # float32 [tokens][n_used], or 0
    weights_stride: Any
    n_used: Any
    out: Any
    out_stride: Any
    n: Any
    split_tokens: Any
    routing: Any
    control: Any


class GatherTiles(NamedTuple):
    """experts:tiles: the same into tiles of eight rows (layout.TILE_BLOCK)."""

    x: Any
    x_stride: Any
    out: Any
    blocks: Any  # of 32 activations in a row
    routing: Any


class ScaleAndShift(NamedTuple):
    """experts:scale_and_shift: x = x * its expert's factor + its expert's row of the shifts, in place."""

    x: Any
    x_stride: Any
    scales: Any  # float32 [n_experts], or 0
    shifts: Any  # float32 [n_experts][shift_bytes], or 0
    shift_bytes: Any  # from one expert's row to the next
    n: Any  # values of a row that this thread takes
    split_tokens: Any
    control: Any


class Mix(NamedTuple):
    """experts:mix: out[token] = the sum of its rows of x, each times its weight if there are weights."""

    x: Any  # float32 [rows][n]
    x_stride: Any
    weights: Any  # float32 [tokens][n_used], or 0
    weights_stride: Any
    n_used: Any
    out: Any
    out_stride: Any
    n: Any  # values that this thread takes
    split_tokens: Any
    routing: Any
    control: Any


class ExpertMatvec(NamedTuple):
    """experts:matvec: rows first..last of each active expert's matrix times the generated tokens that chose it.

    The first arguments are those of ``Matvec``, for expert 0 and row 0.
    """

    weights: Any
    row_bytes: Any
    first: Any
    last: Any
    copied_row: Any
    copy_address: Any
    x: Any
    x_stride: Any
    steps: Any
    tail: Any
    out: Any
    out_stride: Any
    control: Any
    count: Any
    scratch: Any
    kernel: Any  # address of the type's matrix-vector kernel
    expert_rows: Any  # from one expert's matrix to the next
    by_token: Any  # 1: x has a row for each token; 0: for each row of the routing
    own: Any  # scratch: STEP_BYTES for the arguments of one expert, then all rows of x that it may take
    routing: Any


class ExpertPanel(NamedTuple):
    """experts:panel: panels first..last of each active expert's matrix times the prompt tokens that chose it.

    The first arguments are those of ``Panel``, for expert 0 and row 0.
    """

    weights: Any
    row_bytes: Any
    first: Any
    last: Any
    copied_row: Any
    copy_address: Any
    x: Any
    blocks: Any
    out: Any
    out_stride: Any
    scratch: Any
    chunk: Any
    together: Any
    add: Any
    control: Any
    rows: Any
    x_stride: Any
    groups: Any
    kernel: Any  # address of the type's panel kernel
    expert_rows: Any
    tile_bytes: Any  # of x, for eight rows
    own: Any  # scratch: STEP_BYTES
    routing: Any


TABLES.update(
    {
        "expert_choice:choose": Choose,
        "experts:sort": Sort,
        "experts:gather": Gather,
        "experts:tiles": GatherTiles,
        "experts:scale_and_shift": ScaleAndShift,
        "experts:mix": Mix,
        "experts:matvec": ExpertMatvec,
        "experts:panel": ExpertPanel,
    }
)
