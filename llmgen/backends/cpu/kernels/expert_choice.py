"""Mixtures of experts: which experts a token takes, and with which weights."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels import functions
from llmgen.backends.cpu.kernels.abi import arg, arg_f64, inline, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.expert_arguments import SCORES, Choose
from llmgen.backends.cpu.kernels.simd import (
    load_f32,
    load_f32x16,
    load_i64,
    splat,
    store_f32,
    store_f32x16,
    store_i64,
)

choose_at = places(Choose)
_SOFTMAX, _SIGMOID, _SOFTMAX_CHOSEN, _SQRT_SOFTPLUS = (
    SCORES.index(n) for n in ("softmax", "sigmoid", "softmax_chosen", "sqrt_softplus")
)
_LEAST_SUM = np.float32(6.103515625e-5)  # llama.cpp's: the smallest normal number of float16


@inline
def above(a, b):  # type: ignore[no-untyped-def]
    """Whether a comes before b: it is larger; a NaN is larger than all numbers, so that it is not lost."""
    return a > b or (a != a and b == b)


@inline
def insert(ids, count, most, keys, i):  # type: ignore[no-untyped-def]
    """Put i among the ``count`` best so far, at most ``most``, behind those with the same key; returns their number."""
    key = load_f32(keys + 4 * i)
    if count == most:
        if not above(key, load_f32(keys + 4 * load_i64(ids + 8 * (most - 1)))):
            return count
        count -= 1
    place = count
    while place > 0 and above(key, load_f32(keys + 4 * load_i64(ids + 8 * (place - 1)))):
        store_i64(ids + 8 * place, load_i64(ids + 8 * (place - 1)))
        place -= 1
    store_i64(ids + 8 * place, i)
    return count + 1


@inline
def softmax(x, out, n):  # type: ignore[no-untyped-def]
    """out = e^(x - max) / sum, n floats; both have room for whole vectors."""
    top = load_f32(x)
    for i in range(1, n):
        top = load_f32(x + 4 * i) if above(load_f32(x + 4 * i), top) else top
    for i in range(0, n, 16):
        store_f32x16(out + 4 * i, functions.exp(load_f32x16(x + 4 * i) - splat(top)))
    total = 0.0
    for i in range(n):
        total += np.float64(load_f32(out + 4 * i))
    inverse = np.float32(1.0 / total)
    for i in range(n):
        store_f32(out + 4 * i, load_f32(out + 4 * i) * inverse)


@inline
def two_best(keys, n):  # type: ignore[no-untyped-def]
    """The sum of the two largest of n keys."""
    first, second = load_f32(keys), load_f32(keys + 4)
    if above(second, first):
        first, second = second, first
    for i in range(2, n):
        key = load_f32(keys + 4 * i)
        if above(key, first):
            first, second = key, first
        elif above(key, second):
            second = key
    return first + second


@inline
def _is_better_group(keys, a, b):  # type: ignore[no-untyped-def]
    x, y = load_f32(keys + 4 * a), load_f32(keys + 4 * b)
    return above(x, y) or (a < b and not above(y, x))


@inline
def choose_by(keys, group_keys, ids, n, n_used, n_groups, n_groups_used):  # type: ignore[no-untyped-def]
    """The n_used experts with the largest keys, the largest first, out of the best groups."""
    size = n // n_groups
    if n_groups > 1:
        for g in range(n_groups):
            store_f32(group_keys + 4 * g, two_best(keys + 4 * g * size, size))
    count = 0
    for g in range(n_groups):
        better = 0
        if n_groups > 1:
            for other in range(n_groups):
                if other != g and _is_better_group(group_keys, other, g):
                    better += 1
        if better < n_groups_used:
            for i in range(g * size, (g + 1) * size):
                count = insert(ids, count, n_used, keys, i)


@inline
def weigh(scores, ids, weights, n_used, normalize, scale):  # type: ignore[no-untyped-def]
    """The weights of the chosen experts: their scores, perhaps divided by their sum, times scale."""
    total = np.float32(0.0)
    for k in range(n_used):
        score = load_f32(scores + 4 * load_i64(ids + 8 * k))
        store_f32(weights + 4 * k, score)
        total += score
    divisor = np.float32(1.0)
    if normalize:
        divisor = _LEAST_SUM if total < _LEAST_SUM else total
    for k in range(n_used):
        store_f32(weights + 4 * k, load_f32(weights + 4 * k) / divisor * scale)


@step
def choose(args: int, thread: int, n_threads: int) -> None:
    """Each token's experts, best first; of equal ones the lower number comes first."""
    n, n_used = arg(args, choose_at.n_experts), arg(args, choose_at.n_used)
    kind, bias = arg(args, choose_at.scores), arg(args, choose_at.bias)
    n_groups = arg(args, choose_at.n_groups)
    wide = (n + 15) // 16 * 64
    scores = arg(args, choose_at.scratch)
    keys = scores + wide
    group_keys = keys + wide
    first, last = tokens_of(
        arg(args, choose_at.control), arg(args, choose_at.split_tokens), thread, n_threads
    )
    for t in range(first, last):
        logits = arg(args, choose_at.logits) + t * arg(args, choose_at.logits_stride)
        ids = arg(args, choose_at.ids) + t * arg(args, choose_at.ids_stride)
        weights = arg(args, choose_at.weights) + t * arg(args, choose_at.weights_stride)
        if kind == _SOFTMAX:
            softmax(logits, scores, n)
        else:
            for i in range(0, n, 16):
                x = load_f32x16(logits + 4 * i)
                if kind == _SIGMOID:
                    x = functions.sigmoid(x)
                elif kind == _SQRT_SOFTPLUS:
                    x = functions.softplus(x)
                store_f32x16(scores + 4 * i, x)
            if kind == _SQRT_SOFTPLUS:
                for i in range(n):
                    store_f32(scores + 4 * i, np.sqrt(load_f32(scores + 4 * i)))
        by = logits  # scores grow with logits, and rounding them could only make equals
        if bias != 0 or n_groups > 1:
            by = keys
            for i in range(n):
                offset = load_f32(bias + 4 * i) if bias != 0 else np.float32(0.0)
                store_f32(keys + 4 * i, load_f32(scores + 4 * i) + offset)
        choose_by(by, group_keys, ids, n, n_used, n_groups, arg(args, choose_at.n_groups_used))
        for k in range(n_used):
            store_i64(ids + 8 * k, load_i64(ids + 8 * k) // arg(args, choose_at.shared_by))
        if kind == _SOFTMAX_CHOSEN:
            for k in range(n_used):
                store_f32(keys + 4 * k, load_f32(scores + 4 * load_i64(ids + 8 * k)))
            softmax(keys, keys, n_used)
            for k in range(n_used):
                store_f32(scores + 4 * load_i64(ids + 8 * k), load_f32(keys + 4 * k))
        scale = np.float32(arg_f64(args, choose_at.scale))
        weigh(scores, ids, weights, n_used, arg(args, choose_at.normalize), scale)
