"""Steps over recurrent states: convolutions, linear attention and Mamba's scan.

Tokens are taken one after another, each with the state that its sequence has, so the results do
not depend on how tokens were cut into runs or on what else is in a run.  Threads share out
columns or heads, never tokens.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_SEQUENCES,
    CONTROL_TOKENS,
    arg,
    control_field,
    inline,
    step,
)
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.functions import exp
from llmgen.backends.cpu.kernels.recurrent_arguments import Convolve, LinearAttend, SelectiveScan
from llmgen.backends.cpu.kernels.simd import (
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    splat,
    store_f32,
    store_f32x16,
    zero_f32x16,
)

conv_at, attend_at, scan_at = places(Convolve), places(LinearAttend), places(SelectiveScan)


@step
def convolve(args: int, thread: int, n_threads: int) -> None:
    """Columns first..last (whole vectors) of a causal convolution.

    State: the last taps - 1 inputs, the oldest first, [taps - 1][columns in whole vectors].
    """
    control, n_before = arg(args, conv_at.control), arg(args, conv_at.taps) - 1
    w, w_row, row = arg(args, conv_at.weight), arg(args, conv_at.weight_row), arg(args, conv_at.state_row)
    bias, first, last = arg(args, conv_at.bias), 4 * arg(args, conv_at.first), 4 * arg(args, conv_at.last)
    for t in range(control_field(control, CONTROL_TOKENS)):
        x = arg(args, conv_at.x) + t * arg(args, conv_at.x_stride)
        out = arg(args, conv_at.out) + t * arg(args, conv_at.out_stride)
        state = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, conv_at.state_at)
        for i in range(first, last, 64):
            total = zero_f32x16()
            newest = load_f32x16(x + i)
            for tap in range(n_before):
                before = load_f32x16(state + tap * row + i)
                total = fma(load_f32x16(w + tap * w_row + i), before, total)
                if tap > 0:
                    store_f32x16(state + (tap - 1) * row + i, before)
            total = fma(load_f32x16(w + n_before * w_row + i), newest, total)
            store_f32x16(state + (n_before - 1) * row + i, newest)
            if bias:
                total = total + load_f32x16(bias + i)
            store_f32x16(out + i, total)


@inline
def store_some(out, value, n, scratch):  # type: ignore[no-untyped-def]
    """The first n lanes of value, or all; scratch: 64 bytes."""
    if n >= 16:
        store_f32x16(out, value)
    else:
        store_f32x16(scratch, value)
        for i in range(0, 4 * n, 4):
            store_f32(out + i, load_f32(scratch + i))


@inline
def found(state, k, decay, decay_step, key_dim):  # type: ignore[no-untyped-def]
    """k times the decayed state of 16 columns, summed in four strands."""
    a, b, c, d = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    whole = key_dim // 4 * 4
    for i in range(0, whole, 4):
        kept = decay + i * decay_step
        a = fma(splat(load_f32(k + 4 * i)), splat(load_f32(kept)) * load_f32x16(state + 64 * i), a)
        kept += decay_step
        b = fma(splat(load_f32(k + 4 * i + 4)), splat(load_f32(kept)) * load_f32x16(state + 64 * i + 64), b)
        kept += decay_step
        c = fma(splat(load_f32(k + 4 * i + 8)), splat(load_f32(kept)) * load_f32x16(state + 64 * i + 128), c)
        kept += decay_step
        d = fma(splat(load_f32(k + 4 * i + 12)), splat(load_f32(kept)) * load_f32x16(state + 64 * i + 192), d)
    for i in range(whole, key_dim):
        kept = splat(load_f32(decay + i * decay_step)) * load_f32x16(state + 64 * i)
        a = fma(splat(load_f32(k + 4 * i)), kept, a)
    return (a + b) + (c + d)


@inline
def renewed(state, i, k, value, decay, decay_step):  # type: ignore[no-untyped-def]
    """Row i of the state of 16 columns: decayed, and with k * value added; stored and returned."""
    kept = splat(load_f32(decay + i * decay_step)) * load_f32x16(state + 64 * i)
    row = fma(splat(load_f32(k + 4 * i)), value, kept)
    store_f32x16(state + 64 * i, row)
    return row


@inline
def renew(state, q, k, value, decay, decay_step, key_dim):  # type: ignore[no-untyped-def]
    """Bring a token into the state of 16 columns; q times the new one, summed in four strands."""
    a, b, c, d = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
    whole = key_dim // 4 * 4
    for i in range(0, whole, 4):
        a = fma(splat(load_f32(q + 4 * i)), renewed(state, i, k, value, decay, decay_step), a)
        b = fma(splat(load_f32(q + 4 * i + 4)), renewed(state, i + 1, k, value, decay, decay_step), b)
        c = fma(splat(load_f32(q + 4 * i + 8)), renewed(state, i + 2, k, value, decay, decay_step), c)
        d = fma(splat(load_f32(q + 4 * i + 12)), renewed(state, i + 3, k, value, decay, decay_step), d)
    for i in range(whole, key_dim):
        a = fma(splat(load_f32(q + 4 * i)), renewed(state, i, k, value, decay, decay_step), a)
    return (a + b) + (c + d)


def _linear_attend(delta: bool) -> Any:
    def attend(args: int, thread: int, n_threads: int) -> None:
        """Heads first..last, sixteen columns of a head's values at a time, for all tokens.

        State: [head][value_dim / 16, rounded up][key_dim][16].
        """
        control = arg(args, attend_at.control)
        key_dim, value_dim = arg(args, attend_at.key_dim), arg(args, attend_at.value_dim)
        vectors = (value_dim + 15) // 16
        decay_width, decay_step = arg(args, attend_at.decay_width), arg(args, attend_at.decay_step)
        write, skip = arg(args, attend_at.write), arg(args, attend_at.skip)
        for h in range(arg(args, attend_at.first), arg(args, attend_at.last)):
            own = (
                h % arg(args, attend_at.n_keys)
                if arg(args, attend_at.tiled)
                else h // arg(args, attend_at.group)
            )
            for vector in range(vectors):
                state_at = arg(args, attend_at.state_at) + (h * vectors + vector) * key_dim * 64
                column = 4 * (h * value_dim + 16 * vector)
                for t in range(control_field(control, CONTROL_TOKENS)):
                    state = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + state_at
                    q = arg(args, attend_at.q) + t * arg(args, attend_at.q_stride) + 4 * own * key_dim
                    k = arg(args, attend_at.k) + t * arg(args, attend_at.k_stride) + 4 * own * key_dim
                    decay = arg(args, attend_at.decay) + t * arg(args, attend_at.decay_stride)
                    decay += 4 * h * decay_width
                    v = load_f32x16(arg(args, attend_at.v) + t * arg(args, attend_at.v_stride) + column)
                    value = v
                    if delta:
                        value = value - found(state, k, decay, decay_step, key_dim)
                    if write:
                        value = value * splat(load_f32(write + t * arg(args, attend_at.write_stride) + 4 * h))
                    result = renew(state, q, k, value, decay, decay_step, key_dim)
                    if skip:
                        result = fma(splat(load_f32(skip + 4 * h)), v, result)
                    out = arg(args, attend_at.out) + t * arg(args, attend_at.out_stride) + column
                    store_some(out, result, value_dim - 16 * vector, arg(args, attend_at.scratch))

    return step(attend)


linear_attend, delta_rule = _linear_attend(delta=False), _linear_attend(delta=True)


@step
def selective_scan(args: int, thread: int, n_threads: int) -> None:
    """Columns first..last (whole vectors) of Mamba's scan (Gu and Dao, arXiv:2312.00752), for all tokens.

    State: [size][columns in whole vectors].
    """
    control, size, row = arg(args, scan_at.control), arg(args, scan_at.size), arg(args, scan_at.state_row)
    for i in range(4 * arg(args, scan_at.first), 4 * arg(args, scan_at.last), 64):
        skip = load_f32x16(arg(args, scan_at.skip) + i)
        for t in range(control_field(control, CONTROL_TOKENS)):
            state = (
                load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, scan_at.state_at) + i
            )
            x = load_f32x16(arg(args, scan_at.x) + t * arg(args, scan_at.x_stride) + i)
            dt = load_f32x16(arg(args, scan_at.step) + t * arg(args, scan_at.step_stride) + i)
            b = arg(args, scan_at.b) + t * arg(args, scan_at.b_stride)
            c = arg(args, scan_at.c) + t * arg(args, scan_at.c_stride)
            value, result = dt * x, zero_f32x16()
            for n in range(size):
                decay = exp(dt * load_f32x16(arg(args, scan_at.a) + n * arg(args, scan_at.a_row) + i))
                h = fma(splat(load_f32(b + 4 * n)), value, decay * load_f32x16(state + n * row))
                store_f32x16(state + n * row, h)
                result = fma(splat(load_f32(c + 4 * n)), h, result)
            out = arg(args, scan_at.out) + t * arg(args, scan_at.out_stride) + i
            store_f32x16(out, fma(skip, x, result))
