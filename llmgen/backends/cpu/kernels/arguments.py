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


class Store(NamedTuple):
    """cache: keys and values of kv heads first..last; those that are not stored are 0."""

    k: Any
    k_stride: Any
    v: Any
    v_stride: Any
    first: Any
    last: Any
    key_dim: Any  # values of a head's key
    value_dim: Any  # numbers of a head's value
    k_at: Any  # bytes from the sequence's cache to this layer's keys
    v_at: Any  # and to its values
    blocks: Any  # key blocks that the layer keeps
    split_tokens: Any
    control: Any


class Attend(NamedTuple):
    """attention: both roles.  Generated tokens leave row states, which ``Combine`` merges."""

    q: Any
    q_stride: Any
    n_kv: Any  # key/value heads
    group: Any  # query heads of each
    key_dim: Any  # values of a head's key
    value_dim: Any
    k_at: Any  # bytes from a sequence's cache to this layer's keys
    v_at: Any  # ... and values
    blocks: Any  # key blocks that the layer keeps
    window: Any  # keys that a query sees; -n: those from the last multiple of n on
    last: Any  # which field of the control block has the last position that a token sees, in bytes from ``control``
    cap: float  # soft cap of the scores, or 0
    slopes: Any  # 0, or float32 [heads]: what a score loses with each position of distance
    sinks: Any  # 0, or float32 [heads]: a score that takes part in the softmax and has no value
    out: Any  # tiles: float32 [tokens][heads * value_dim]; blocks: row states [tokens][n_kv][blocks seen][group]
    out_stride: Any
    scratch: Any  # see attention.py
    control: Any


class AttendLatent(NamedTuple):
    """latent: as ``Attend``, over a latent cache, whose values are the first part of its keys."""

    q: Any  # float32 [tokens][heads][value_dim], meets the content
    q_stride: Any
    q_position: Any  # float32 [tokens][heads][key_dim], meets the position part
    q_position_stride: Any
    group: Any  # query heads
    key_dim: Any  # values of the position part
    value_dim: Any  # values of the content
    k_at: Any  # bytes from a sequence's cache to this layer's position parts
    v_at: Any  # ... and contents
    blocks: Any
    window: Any
    last: Any
    cap: float
    sinks: Any
    out: Any  # tiles: float32 [tokens][heads * value_dim]; blocks: row states [tokens][blocks seen][heads]
    out_stride: Any
    scratch: Any  # see latent.py
    chosen: Any  # role "chosen": what indexer:choose has left, ChooseKeys.out
    chosen_stride: Any
    control: Any


class ScoreKeys(NamedTuple):
    """indexer:scores: out[token][key] = the sum over heads of weight * max(0, q . key)."""

    q: Any  # float32 [tokens][heads][key_dim]
    q_stride: Any
    weights: Any  # float32 [tokens][heads]
    weights_stride: Any
    heads: Any
    key_dim: Any
    k_at: Any  # bytes from a sequence's cache to the keys
    out: Any  # float32 [tokens][n_ctx in whole groups]
    out_stride: Any
    scratch: Any  # float32 [key_dim][KEY_GROUP]
    control: Any


class ChooseKeys(NamedTuple):
    """indexer:choose: the k keys of each token with the largest scores."""

    scores: Any  # ScoreKeys.out
    scores_stride: Any
    k: Any
    out: Any  # int64 [tokens][1 + k]: how many, then their positions, ascending
    out_stride: Any
    scratch: Any  # int64 [256]
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


class Combine(NamedTuple):
    """attention:combine: the row states of each query head -> its result."""

    n_kv: Any
    group: Any
    value_dim: Any
    window: Any  # as in Attend
    last: Any
    states: Any  # Attend.out
    states_stride: Any
    out: Any  # float32 [tokens][heads * value_dim]
    out_stride: Any
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


class Convolve(NamedTuple):
    """recurrent:convolve: columns first..last, for all tokens."""

    x: Any
    x_stride: Any
    weight: Any  # float32 [taps][columns]
    weight_row: Any  # bytes of a row of it
    bias: Any  # float32 [columns], or 0
    taps: Any
    state_at: Any  # bytes from the sequence's memory to the state
    state_row: Any  # bytes of a row of the state
    out: Any
    out_stride: Any
    first: Any
    last: Any
    control: Any


class LinearAttend(NamedTuple):
    """recurrent:linear_attend, delta_rule: heads first..last, for all tokens."""

    q: Any  # float32 [tokens][n_keys][key_dim]
    q_stride: Any
    k: Any
    k_stride: Any
    v: Any  # float32 [tokens][heads][value_dim]
    v_stride: Any
    decay: Any  # float32 [tokens][heads][decay_width]
    decay_stride: Any  # 0: the same for all tokens
    decay_width: Any  # 1: one for a head; key_dim: one for each row of the state
    decay_step: Any  # bytes from one row's decay to the next: 0 or 4
    write: Any  # float32 [tokens][heads], or 0
    write_stride: Any
    skip: Any  # float32 [heads], or 0
    key_dim: Any
    value_dim: Any
    n_keys: Any  # heads of q and k
    group: Any  # heads that each of them serves
    tiled: Any  # 1: every n_keys-th head; 0: neighbours
    state_at: Any
    out: Any
    out_stride: Any
    scratch: Any  # 64 bytes
    first: Any
    last: Any
    control: Any


class SelectiveScan(NamedTuple):
    """recurrent:selective_scan: columns first..last, for all tokens."""

    x: Any
    x_stride: Any
    step: Any  # float32 [tokens][columns]
    step_stride: Any
    a: Any  # float32 [size][columns]
    a_row: Any  # bytes of a row of it
    b: Any  # float32 [tokens][size]
    b_stride: Any
    c: Any
    c_stride: Any
    skip: Any  # float32 [columns]
    size: Any  # of each column's state
    state_at: Any
    state_row: Any
    out: Any
    out_stride: Any
    first: Any
    last: Any
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
    "attention": Attend,
    "attention:combine": Combine,
    "cache": Store,
    "indexer": ScoreKeys,
    "indexer:choose": ChooseKeys,
    "latent": AttendLatent,
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
    "recurrent:convolve": Convolve,
    "recurrent:delta_rule": LinearAttend,
    "recurrent:linear_attend": LinearAttend,
    "recurrent:selective_scan": SelectiveScan,
    "quants.turned": Turned,
    "rope": Rope,
}
"""By kernel; by file for all its other kernels."""


def table_of(kernel: str) -> type[Any]:
    """The table of a kernel's arguments."""
    return TABLES.get(kernel) or TABLES[kernel.split(":")[0]]


Table = TypeVar("Table", bound=NamedTuple)


def places(table: type[Table]) -> Table:
    """The place of each argument in its table, under its name."""
    return table._make(range(len(table._fields)))
