"""The arguments of every step: what a program's table holds, by name.

A step is a kernel and one of these tables.  The recorder (backends/cpu/recorder.py) fills it
in by name, which refuses what is missing or unknown; the kernel finds an argument at
its place, which is the table's order:

    at = places(Norm)  ...  arg(args, at.n), arg_f64(args, at.eps)

An argument is a 64-bit integer, an address, or (here ``float``) the bits of a float64.
Strides are bytes from one token to the next, addresses are of float32 [tokens][n],
where nothing else is said.  The same words mean the same everywhere:

    control  address of the control block (layout.FIELDS)
    count    which of its fields says how many tokens there are, in bytes from ``control``
    split    0: each thread takes all tokens; 1: its own
    first, last   the part [first, last) that this thread takes
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar


class Embed(NamedTuple):
    """quants.rows: out[token] = scale * weights[id or position of the token]."""

    weights: Any
    number: (
        Any  # which field of the control block numbers the rows, in bytes from ``control``: ids or positions
    )
    row_bytes: Any
    blocks: Any  # of a row
    block: Any  # weights of a block
    out: Any
    out_stride: Any
    n: Any  # weights of a row
    scale: float
    split_tokens: Any
    control: Any


class Norm(NamedTuple):
    """norms: heads first..last of n values each; a token's whole width is one head."""

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    weight: Any  # float32 [n], or a row per head
    weight_stride: Any  # bytes from one head's row to the next; 0: one row for all heads
    bias: Any  # float32 [n], or 0; layer_norm only
    n: Any
    first: Any
    last: Any
    split_tokens: Any
    control: Any
    eps: float


class Rope(NamedTuple):
    """rope: heads first..last, in place."""

    x: Any
    x_stride: Any
    first: Any
    last: Any
    head_dim: Any
    n_rot: Any  # values of a head that are rotated
    neox: Any  # 1: pairs lie half of n_rot apart; 0: side by side
    table: Any  # float32 [positions][2][n_rot]: cosines, signed sines
    scale: float
    position_scale: Any  # 0, or one more factor for each position: float32 [positions]
    split_tokens: Any
    control: Any


class Turned(NamedTuple):
    """quants.turned: blocks first..last of every row of a matrix, each row times one value of each token, summed."""

    weights: Any
    row_bytes: Any
    rows: Any
    first: Any
    last: Any
    block: Any  # weights of a block
    x: Any  # float32 [tokens][rows]
    x_stride: Any
    out: Any  # float32 [tokens][weights of a row]
    out_stride: Any
    scratch: Any  # float32 [rows][weights of this thread's blocks, in whole vectors]
    control: Any


class Binary(NamedTuple):
    """pointwise: out = f(x, y)."""

    x: Any
    x_stride: Any
    y: Any
    y_stride: Any  # 0: one row for all tokens
    out: Any
    out_stride: Any
    n: Any  # values of a token that this thread takes
    split_tokens: Any
    control: Any


class Copy(NamedTuple):
    """pointwise:copy: out = x."""

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    n: Any
    split_tokens: Any
    control: Any


class Unary(NamedTuple):
    """pointwise: out = f(x)."""

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    n: Any  # values of a token that this thread takes
    split_tokens: Any
    control: Any


class UnaryWith(NamedTuple):
    """pointwise: out = f(x, parameter)."""

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    n: Any
    parameter: float
    split_tokens: Any
    control: Any


class PerHead(NamedTuple):
    """pointwise:gate_heads and its like: heads first..last of x, each times f of its own gate."""

    x: Any
    x_stride: Any
    gate: Any  # float32 [tokens][n_heads]
    gate_stride: Any
    out: Any
    out_stride: Any
    first: Any
    last: Any
    head_dim: Any
    split_tokens: Any
    control: Any


class HeadPart(NamedTuple):
    """pointwise:head_part: of heads first..last of x the ``count`` values from ``start`` on."""

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    first: Any
    last: Any
    head_dim: Any
    start: Any
    n: Any  # values taken of each head
    split_tokens: Any
    control: Any


class AddRow(NamedTuple):
    """pointwise:add_row: x += y, in place."""

    x: Any
    x_stride: Any
    y: Any  # float32 [n]
    n: Any
    control: Any
    count: Any


class Softcap(NamedTuple):
    """pointwise:softcap: x = cap * tanh(x / cap), in place."""

    x: Any
    x_stride: Any
    n: Any
    cap: float
    control: Any
    count: Any


class Quantize(NamedTuple):
    """activations: quantize (layout.ACTIVATION_FORMATS).

    first, last and real count blocks of 32 activations, for the float format single values.
    """

    x: Any
    x_stride: Any
    out: Any
    out_stride: Any
    first: Any
    last: Any
    real: Any  # from here on there is nothing, and zeros are written
    gather: Any  # 1: take the tokens that want logits; 0: all
    split_tokens: Any
    control: Any
    count: Any


class Tiles(NamedTuple):
    """activations:tiles: into tiles of eight tokens (layout.TILE_BLOCK)."""

    x: Any
    x_stride: Any
    out: Any
    blocks: Any  # of 32 activations in a token
    control: Any


class Matvec(NamedTuple):
    """quants.matvec: rows first..last of a matrix times generated tokens."""

    weights: Any
    row_bytes: Any
    first: Any
    last: Any
    copied_row: Any  # this row, or -1 ...
    copy_address: Any  # ... is read here, where bytes behind it may be read too
    x: Any  # activations, in the format of the type
    x_stride: Any
    steps: Any  # whole steps of the kernel in a row
    tail: Any  # blocks behind them
    out: Any
    out_stride: Any
    control: Any
    count: Any
    scratch: Any  # MAX_COLUMNS * COLUMN_SUMS bytes


class Panel(NamedTuple):
    """quants.panel, quants.float_panel: panels first..last of 16 rows times prompt tokens."""

    weights: Any
    row_bytes: Any
    first: Any
    last: Any
    copied_row: Any  # as in Matvec
    copy_address: Any
    x: Any  # tiles; for float weights float32
    blocks: Any  # of a row, here and below; for float weights single weights
    out: Any
    out_stride: Any
    scratch: Any  # see layout.panel_scratch; for float weights layout.float_panel_scratch
    chunk: Any  # blocks that are unpacked at once; of float weights a multiple of 32
    together: Any  # panels that are unpacked at once
    add: Any  # 1: add to out; 0: write it
    control: Any
    rows: Any  # of the matrix
    x_stride: Any  # for float weights
    groups: Any  # QuantType.groups


TABLES: dict[str, type[Any]] = {
    "activations": Quantize,
    "activations:tiles": Tiles,
    "norms": Norm,
    "pointwise": Binary,
    "pointwise:add_row": AddRow,
    "pointwise:at_most": UnaryWith,
    "pointwise:clamp": UnaryWith,
    "pointwise:copy": Copy,
    "pointwise:exp": Unary,
    "pointwise:gate_heads": PerHead,
    "pointwise:gate_heads_softplus": PerHead,
    "pointwise:gelu": Unary,
    "pointwise:gelu_erf": Unary,
    "pointwise:gelu_quick": Unary,
    "pointwise:head_part": HeadPart,
    "pointwise:relu": Unary,
    "pointwise:relu_squared": Unary,
    "pointwise:scale": UnaryWith,
    "pointwise:sigmoid": Unary,
    "pointwise:silu": Unary,
    "pointwise:softcap": Softcap,
    "pointwise:softplus": Unary,
    "pointwise:tanh": Unary,
    "quants.matvec": Matvec,
    "quants.float_panel": Panel,
    "quants.panel": Panel,
    "quants.rows": Embed,
    "quants.turned": Turned,
    "rope": Rope,
}
"""By kernel; by file for all its other kernels.  Families with tables of their own add them: see *_arguments.py."""


def table_of(kernel: str) -> type[Any]:
    """The table of a kernel's arguments."""
    return TABLES.get(kernel) or TABLES[kernel.split(":")[0]]


Table = TypeVar("Table", bound=NamedTuple)


def places(table: type[Table]) -> Table:
    """The place of each argument in its table, under its name."""
    return table._make(range(len(table._fields)))
