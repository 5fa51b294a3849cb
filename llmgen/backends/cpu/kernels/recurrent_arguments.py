"""The arguments of the steps that advance recurrent states; see arguments.py, whose words hold here too."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


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


TABLES.update(
    {
        "recurrent:convolve": Convolve,
        "recurrent:delta_rule": LinearAttend,
        "recurrent:linear_attend": LinearAttend,
        "recurrent:selective_scan": SelectiveScan,
    }
)
