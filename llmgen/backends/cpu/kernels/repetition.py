"""Stages of choice.py that change logits for what is in the text already, and before them biases and masks.

The arguments are as in stages.py.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import helper, stay_apart
from llmgen.backends.cpu.kernels.simd import (
    load_f32,
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    store_f32,
    store_i32,
)
from llmgen.backends.cpu.kernels.stages import (
    BIASED,
    BIASES,
    BREAKERS,
    HISTORY,
    IDS,
    LENGTHS,
    MARKS,
    MASKED,
    N_BIASED,
    N_HISTORY,
    N_MASKED,
    REPEATS,
    SINCE,
    WORK,
    copied,
)


@helper
def biased(v, n, places):  # type: ignore[no-untyped-def]
    """Biases and masks, in memory that may be written."""
    stay_apart()
    n_biased, n_masked = load_i64(places + N_BIASED), load_i64(places + N_MASKED)
    if n_biased + n_masked == 0:
        return v
    work = copied(v, n, load_i64(places + WORK))
    for i in range(n_biased):
        at = work + 4 * load_i64(load_i64(places + BIASED) + 8 * i)
        bias = load_f64(load_i64(places + BIASES) + 8 * i)
        if bias == -np.inf:
            store_f32(at, np.float32(-np.inf))
        else:
            store_f32(at, np.float32(np.float64(load_f32(at)) + bias))
    for i in range(n_masked):
        store_f32(work + 4 * load_i64(load_i64(places + MASKED) + 8 * i), np.float32(-np.inf))
    return work


@helper
def _penalize(at, count, stage):  # type: ignore[no-untyped-def]
    """Repetition, frequency and presence penalties for a token that is in the window ``count`` times."""
    logit = np.float64(load_f32(at))
    repeat = load_f64(stage + 16)
    logit = logit / repeat if logit > 0.0 else logit * repeat
    store_f32(at, np.float32(logit - (count * load_f64(stage + 24) + load_f64(stage + 32))))


@helper
def penalties(v, m, whole, n_vocab, stage, places):  # type: ignore[no-untyped-def]
    """The penalties for what is in the window; MARKS counts it, and is all zeros before and after."""
    stay_apart()
    marks, end = load_i64(places + MARKS), load_i64(places + N_HISTORY)
    last_n = int(load_f64(stage + 8))
    first = max(0, end - last_n) if last_n >= 0 else 0
    history = load_i64(places + HISTORY)
    for j in range(first, end):
        token = load_i64(history + 8 * j)
        if token >= 0 and token < n_vocab:
            store_i32(marks + 4 * token, load_u32(marks + 4 * token) + 1)
    if not whole:
        for i in range(m):
            count = load_u32(marks + 4 * load_i64(load_i64(places + IDS) + 8 * i))
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
def dry(v, m, whole, n_vocab, stage, places):  # type: ignore[no-untyped-def]
    """DRY: MARKS has the longest repetition that a token would continue, and is all zeros before and after."""
    stay_apart()
    marks, end = load_i64(places + MARKS), load_i64(places + N_HISTORY)
    last_n, allowed = int(load_f64(stage + 8)), int(load_f64(stage + 16))
    first = max(0, end - last_n) if last_n >= 0 else 0
    history, n = load_i64(places + HISTORY) + 8 * first, end - first
    limit = min(n, load_i64(places + SINCE))
    if load_f64(stage + 24) >= 0.0:
        limit = min(limit, int(load_f64(stage + 24)))
    if n < 2 or limit < allowed:
        return
    lengths = load_i64(places + LENGTHS)
    _repeats(history, n, lengths, limit)
    for sweep in range(2):
        for j in range(1, n):
            length = load_u32(lengths + 4 * j)
            if length < allowed:
                continue
            token = load_i64(history + 8 * (n - j))  # the one after the repetition
            if token < 0 or token >= n_vocab or load_u8(load_i64(places + BREAKERS) + token) != 0:
                continue
            longest = load_u32(marks + 4 * token)
            if sweep == 0:
                store_i32(marks + 4 * token, max(longest, length))
                continue
            store_i32(marks + 4 * token, 0)
            if whole and longest > 0:
                _add_repeat(v + 4 * token, longest - allowed, places)
        if sweep == 0 and not whole:
            for i in range(m):
                longest = load_u32(marks + 4 * load_i64(load_i64(places + IDS) + 8 * i))
                if longest > 0:
                    _add_repeat(v + 4 * i, longest - allowed, places)


@helper
def _add_repeat(at, i, places):  # type: ignore[no-untyped-def]
    penalty = load_f64(load_i64(places + REPEATS) + 8 * i)
    store_f32(at, np.float32(np.float64(load_f32(at)) - penalty))
