"""Stages of choice.py that change logits for what is in the text already, and before them biases and masks.

The arguments are as in stages.py.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import helper, stay_apart
from llmgen.backends.cpu.kernels.sampling_arguments import STAGES, Dry, Penalties, offsets
from llmgen.backends.cpu.kernels.selection import AT
from llmgen.backends.cpu.kernels.simd import (
    load_f32,
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    store_f32,
    store_i32,
)
from llmgen.backends.cpu.kernels.stages import copied

PENALTIES, DRY = STAGES.index(Penalties), STAGES.index(Dry)
_penalties, _dry = offsets(Penalties, 1), offsets(Dry, 1)


@helper
def biased(v, n, args):  # type: ignore[no-untyped-def]
    """The constraint, biases and masks, in memory that may be written."""
    stay_apart()
    allowed = load_i64(args + AT.allowed)
    n_biased, n_masked = load_i64(args + AT.n_biased), load_i64(args + AT.n_masked)
    if allowed == 0 and n_biased + n_masked == 0:
        return v
    work = copied(v, n, load_i64(args + AT.work))
    if allowed != 0:
        for i in range(n):
            if load_u8(allowed + i) == 0:
                store_f32(work + 4 * i, np.float32(-np.inf))
    for i in range(n_biased):
        at = work + 4 * load_i64(load_i64(args + AT.biased) + 8 * i)
        bias = load_f64(load_i64(args + AT.biases) + 8 * i)
        if bias == -np.inf:
            store_f32(at, np.float32(-np.inf))
        else:
            store_f32(at, np.float32(np.float64(load_f32(at)) + bias))
    for i in range(n_masked):
        store_f32(work + 4 * load_i64(load_i64(args + AT.masked) + 8 * i), np.float32(-np.inf))
    return work


@helper
def _penalize(at, count, stage):  # type: ignore[no-untyped-def]
    """Repetition, frequency and presence penalties for a token that is in the window ``count`` times."""
    logit = np.float64(load_f32(at))
    repeat = load_f64(stage + _penalties.repeat)
    logit = logit / repeat if logit > 0.0 else logit * repeat
    lowered = count * load_f64(stage + _penalties.frequency) + load_f64(stage + _penalties.presence)
    store_f32(at, np.float32(logit - lowered))


@helper
def penalties(v, m, whole, n_vocab, stage, args):  # type: ignore[no-untyped-def]
    """The penalties for what is in the window; MARKS counts it, and is all zeros before and after."""
    stay_apart()
    marks, end = load_i64(args + AT.marks), load_i64(args + AT.n_history)
    last_n = int(load_f64(stage + _penalties.last_n))
    first = max(0, end - last_n) if last_n >= 0 else 0
    history = load_i64(args + AT.history)
    for j in range(first, end):
        token = load_i64(history + 8 * j)
        if token >= 0 and token < n_vocab:
            store_i32(marks + 4 * token, load_u32(marks + 4 * token) + 1)
    if not whole:
        for i in range(m):
            count = load_u32(marks + 4 * load_i64(load_i64(args + AT.ids) + 8 * i))
            if count > 0:
                _penalize(v + 4 * i, np.float64(count), stage)
    for j in range(first, end):
        token = load_i64(history + 8 * j)
        if token >= 0 and token < n_vocab:
            count = load_u32(marks + 4 * token)
            store_i32(marks + 4 * token, 0)
            if whole and count > 0:
                _penalize(v + 4 * token, np.float64(count), stage)


@helper
def _repeats(history, n, lengths, limit):  # type: ignore[no-untyped-def]
    """lengths[i] = how many tokens up to i (of n - 1) are those at the end, at most ``limit``: int32 [n].

    The Z algorithm over the reversed history: linear, also where all tokens are the same.
    """
    stay_apart()
    left, right = 0, 0  # of the match that reaches furthest, counted from the end
    for j in range(1, n):
        length = 0
        if j < right:
            length = min(right - j, load_u32(lengths + 4 * (j - left)))
        while j + length < n and load_i64(history + 8 * (n - 1 - length)) == load_i64(
            history + 8 * (n - 1 - j - length)
        ):
            length += 1
        if j + length > right:
            left, right = j, j + length
        store_i32(lengths + 4 * j, length)
    for j in range(1, n):
        store_i32(lengths + 4 * j, min(limit, load_u32(lengths + 4 * j)))


@helper
def dry(v, m, whole, n_vocab, stage, args):  # type: ignore[no-untyped-def]
    """DRY: MARKS has the longest repetition that a token would continue, and is all zeros before and after."""
    stay_apart()
    marks, end = load_i64(args + AT.marks), load_i64(args + AT.n_history)
    last_n, allowed = int(load_f64(stage + _dry.last_n)), int(load_f64(stage + _dry.allowed))
    first = max(0, end - last_n) if last_n >= 0 else 0
    history, n = load_i64(args + AT.history) + 8 * first, end - first
    limit = min(n, load_i64(args + AT.since))
    if load_f64(stage + _dry.longest) >= 0.0:
        limit = min(limit, int(load_f64(stage + _dry.longest)))
    if n < 2 or limit < allowed:
        return
    lengths = load_i64(args + AT.lengths)
    _repeats(history, n, lengths, limit)
    for sweep in range(2):
        for j in range(1, n):
            length = load_u32(lengths + 4 * j)
            if length < allowed:
                continue
            token = load_i64(history + 8 * (n - j))  # the one after the repetition
            if token < 0 or token >= n_vocab or load_u8(load_i64(args + AT.breakers) + token) != 0:
                continue
            longest = load_u32(marks + 4 * token)
            if sweep == 0:
                store_i32(marks + 4 * token, max(longest, length))
                continue
            store_i32(marks + 4 * token, 0)
            if whole and longest > 0:
                _add_repeat(v + 4 * token, longest - allowed, args)
        if sweep == 0 and not whole:
            for i in range(m):
                longest = load_u32(marks + 4 * load_i64(load_i64(args + AT.ids) + 8 * i))
                if longest > 0:
                    _add_repeat(v + 4 * i, longest - allowed, args)


@helper
def _add_repeat(at, i, args):  # type: ignore[no-untyped-def]
    penalty = load_f64(load_i64(args + AT.repeats) + 8 * i)
    store_f32(at, np.float32(np.float64(load_f32(at)) - penalty))
