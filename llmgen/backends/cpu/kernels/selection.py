"""Helpers of choice.py: which of many values come first, and what their weights sum to.

A list of candidates is ``v``, float32 [m], their logits, in the order of their token ids.
Nothing is sorted but a border of at most BORDER values: a bound is found first, by counting
and summing what is over it, and blocks whose largest value does not reach the bound are
passed over.  Up to FINE candidates all sums are float64 over single weights; over it, float32
over blocks of 512 (see sampling.py), added in float64.

``args`` is the address of the table ``Step`` (sampling_arguments.py), of which ``maxima`` is what
lane_maxima found for the keys.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import helper, stay_apart
from llmgen.backends.cpu.kernels.sampling import rest_of, weight
from llmgen.backends.cpu.kernels.sampling_arguments import BLOCK, BORDER, FINE, LANES, Step, offsets
from llmgen.backends.cpu.kernels.simd import (
    at_least,
    binary,
    f32x16,
    load_f32,
    load_f32x16,
    load_f64,
    load_i64,
    max_f32x16,
    splat,
    store_f32,
    store_f64,
    store_i64,
    sum_f32x16,
    zero_f32x16,
)

LN_2 = 0.6931471805599453
AT = offsets(Step)
_FEW = 256  # so many first ones are found through a heap

reached = binary(
    f32x16,
    f32x16,
    f32x16,
    lambda builder, a, b: builder.uitofp(builder.fcmp_ordered(">=", a, b), a.type),
)
"""1 in the lanes where a >= b, else 0."""
_which = binary(
    f32x16,
    f32x16,
    types.int64,
    lambda builder, a, b: builder.zext(
        builder.bitcast(builder.fcmp_ordered(">=", a, b), ir.IntType(16)), ir.IntType(64)
    ),
)


@helper
def hits(keys, i, m, low, spare):  # type: ignore[no-untyped-def]
    """A bit for each of the keys i to i + 15, up to m, that is at least ``low``."""
    row = keys + 4 * i
    if i + 16 > m:  # lanes behind the end get NaN, which reaches nothing
        row = rest_of(keys, i, m, spare, np.float32(np.nan))
    return _which(load_f32x16(row), splat(low))


@helper
def exp(d, args):  # type: ignore[no-untyped-def]
    """e^d for d <= 0 in float64, to about 1 ulp: 2^n times the Taylor series of e^r, |r| <= ln(2) / 2."""
    stay_apart()
    if not d > -700.0:
        return 0.0
    n = int(d * 1.4426950408889634 - 0.5)
    r = (d - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    store_i64(args + AT.scratch, (n + 1023) << 52)
    return p * load_f64(args + AT.scratch)


@helper
def log(x, args):  # type: ignore[no-untyped-def]
    """ln x for 1 <= x < 1e300, by Newton's method on e^-y = 1 / x."""
    stay_apart()
    y = 0.0
    rest = x
    while rest >= 2.0:
        rest *= 0.5
        y += LN_2
    for _ in range(5):
        y += x * exp(-y, args) - 1.0
    return y


@helper
def _before(keys, a, b):  # type: ignore[no-untyped-def]
    """Whether index a comes before b: by falling key, then by rising index."""
    u, v = load_f32(keys + 4 * a), load_f32(keys + 4 * b)
    return u > v or (u == v and a < b)


@helper
def sink(keys, order, root, count):  # type: ignore[no-untyped-def]
    """Restore the heap of indices, the first in order on top, below ``root``."""
    stay_apart()
    item = load_i64(order + 8 * root)
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and _before(keys, load_i64(order + 8 * child + 8), load_i64(order + 8 * child)):
            child += 1
        above = load_i64(order + 8 * child)
        if not _before(keys, above, item):
            break
        store_i64(order + 8 * root, above)
        root = child
    store_i64(order + 8 * root, item)


@helper
def pop(keys, order, count):  # type: ignore[no-untyped-def]
    """Take the first in order from a heap of ``count``."""
    first = load_i64(order)
    store_i64(order, load_i64(order + 8 * (count - 1)))
    sink(keys, order, 0, count - 1)
    return first


@helper
def heap_between(keys, m, low, high, args):  # type: ignore[no-untyped-def]
    """A heap of the indices with low <= key < high, of which there are at most BORDER; their number."""
    stay_apart()
    maxima, spare = load_i64(args + AT.maxima), load_i64(args + AT.spare)
    order = load_i64(args + AT.order)
    count = 0
    for start in range(0, m, BLOCK):
        lanes = maxima + 4 * (start // BLOCK) * LANES
        if max_f32x16(load_f32x16(lanes)) >= low:
            for row in range(start, min(m, start + BLOCK), 16):
                bits, i = hits(keys, row, m, low, spare), row
                while bits != 0:
                    if bits & 1 != 0 and load_f32(keys + 4 * i) < high:
                        store_i64(order + 8 * count, i)
                        count += 1
                    bits, i = bits >> 1, i + 1
    for root in range(count // 2 - 1, -1, -1):
        sink(keys, order, root, count)
    return count


@helper
def over(keys, v, m, low, peak, counting, args):  # type: ignore[no-untyped-def]
    """How many keys are at least ``low``; SUM becomes the sum of their e^(v - peak), unless ``counting``."""
    stay_apart()
    maxima, spare = load_i64(args + AT.maxima), load_i64(args + AT.spare)
    count, total = 0, 0.0
    for start in range(0, m, BLOCK):
        lanes = maxima + 4 * (start // BLOCK) * LANES
        if not max_f32x16(load_f32x16(lanes)) >= low:
            continue
        stop = min(m, start + BLOCK)
        if m <= FINE:
            for i in range(start, stop):
                if load_f32(keys + 4 * i) >= low:
                    count += 1
                    if not counting:
                        total += exp(np.float64(load_f32(v + 4 * i)) - np.float64(peak), args)
            continue
        part, found = zero_f32x16(), zero_f32x16()
        for i in range(start, stop, 16):
            if hits(keys, i, m, low, spare) == 0:
                continue
            key, logit = keys + 4 * i, v + 4 * i
            if i + 16 > m:
                key = rest_of(keys, i, m, spare, np.float32(np.nan))
            hit = reached(load_f32x16(key), splat(low))
            found = found + hit
            if not counting:
                if i + 16 > m:
                    logit = rest_of(v, i, m, spare, np.float32(-np.inf))
                part = part + hit * weight(
                    at_least(load_f32x16(logit) - splat(peak), splat(np.float32(-87.0)))
                )
        count += int(sum_f32x16(found))
        total += np.float64(sum_f32x16(part))
    store_f64(args + AT.sum, total)
    return count


@helper
def _kth(maxima, n_maxima, k, heap):  # type: ignore[no-untyped-def]
    """The k-th largest of the maxima, through a heap of k with the least on top; k-th of all or less."""
    stay_apart()
    if k >= n_maxima:
        return np.float32(-np.inf)
    for i in range(k):
        store_f32(heap + 4 * i, np.float32(-np.inf))
    for i in range(n_maxima):
        value = load_f32(maxima + 4 * i)
        if value > load_f32(heap):
            root = 0
            while 2 * root + 1 < k:
                child = 2 * root + 1
                if child + 1 < k and load_f32(heap + 4 * child + 4) < load_f32(heap + 4 * child):
                    child += 1
                if not load_f32(heap + 4 * child) < value:
                    break
                store_f32(heap + 4 * root, load_f32(heap + 4 * child))
                root = child
            store_f32(heap + 4 * root, value)
    return load_f32(heap)


@helper
def border(keys, v, m, top, peak, goal, beyond, counting, args):  # type: ignore[no-untyped-def]
    """Where the fewest first candidates end that together reach ``goal``.

    First: by falling key, then by rising index.  ``goal`` is a number of candidates where
    ``counting``, else a sum of weights e^(v - peak), to be exceeded where ``beyond``.  ``top``
    is the largest key.  Those with a key over LOW belong to them, and the first TIES of
    those with LOW itself.
    """
    stay_apart()
    low, high = np.float32(-np.inf), np.float32(np.inf)  # the border is in [low, high)
    n_low, n_high, sum_high = m, 0, 0.0
    step = np.float32(4)
    if counting and goal <= _FEW and m > BORDER:
        low = _kth(load_i64(args + AT.maxima), -(-m // BLOCK) * LANES, int(goal), load_i64(args + AT.order))
        n_low = over(keys, v, m, low, peak, True, args)
    while n_low - n_high > BORDER:
        if low == -np.inf:
            middle = top - step
            step = step * np.float32(4)
        else:
            middle = low + (min(high, top) - low) * np.float32(0.5)
            if middle == low and high > top:
                middle = top
        if not (middle > low and middle < high):
            break
        count = over(keys, v, m, middle, peak, counting, args)
        amount = np.float64(count) if counting else load_f64(args + AT.sum)
        if amount > goal or (not beyond and amount >= goal):
            low, n_low = middle, count
        else:
            high, n_high, sum_high = middle, count, load_f64(args + AT.sum)
    amount = np.float64(n_high) if counting else sum_high
    if n_low - n_high <= BORDER:
        _end_in_heap(keys, v, m, low, high, peak, amount, goal, beyond, counting, args)
    else:
        _end_in_ties(keys, v, m, low, peak, amount, goal, beyond, counting, args)


@helper
def _end_in_heap(keys, v, m, low, high, peak, amount, goal, beyond, counting, args):  # type: ignore[no-untyped-def]
    """The border among the few with low <= key < high, taken in order; ``amount``: what is over them."""
    stay_apart()
    order = load_i64(args + AT.order)
    count = heap_between(keys, m, low, high, args)
    last, ties = high, 0
    while count > 0:
        i = pop(keys, order, count)
        count -= 1
        key = load_f32(keys + 4 * i)
        ties = ties + 1 if key == last else 1
        last = key
        amount += 1.0 if counting else exp(np.float64(load_f32(v + 4 * i)) - np.float64(peak), args)
        if amount > goal or (not beyond and amount >= goal):
            break
    store_f64(args + AT.low, np.float64(last))
    store_i64(args + AT.ties, ties)


@helper
def _end_in_ties(keys, v, m, low, peak, amount, goal, beyond, counting, args):  # type: ignore[no-untyped-def]
    """The border among very many keys that are all ``low``."""
    stay_apart()
    ties = 0
    logit, own = np.float32(-np.inf), 0.0
    for i in range(m):
        if load_f32(keys + 4 * i) == low:
            if load_f32(v + 4 * i) != logit:
                logit = load_f32(v + 4 * i)
                own = exp(np.float64(logit) - np.float64(peak), args)
            ties += 1
            amount += 1.0 if counting else own
            if amount > goal or (not beyond and amount >= goal):
                break
    store_f64(args + AT.low, np.float64(low))
    store_i64(args + AT.ties, ties)


@helper
def keep(keys, v, m, ids, whole, low, ties, out_ids, out, args):  # type: ignore[no-untyped-def]
    """Those with a key over ``low``, and the first ``ties`` of those with it; their number.

    ``whole``: ids are the indices.  The outputs may be the inputs.
    """
    stay_apart()
    maxima, spare = load_i64(args + AT.maxima), load_i64(args + AT.spare)
    count = 0
    for start in range(0, m, BLOCK):
        lanes = maxima + 4 * (start // BLOCK) * LANES
        if not max_f32x16(load_f32x16(lanes)) >= low:
            continue
        for row in range(start, min(m, start + BLOCK), 16):
            if hits(keys, row, m, low, spare) == 0:
                continue
            for i in range(row, min(m, row + 16)):
                key = load_f32(keys + 4 * i)
                # written where the count moves on: no branch to guess wrong
                store_i64(out_ids + 8 * count, i if whole else load_i64(ids + 8 * i))
                store_f32(out + 4 * count, load_f32(v + 4 * i))
                tie = key == low and ties > 0
                ties -= tie
                count += tie or key > low
    return count


@helper
def heap_of_best(v, m, k, peak, out_ids, args):  # type: ignore[no-untyped-def]
    """The k best: their indices by rising index in ``out_ids``, values in KEYS, a heap of their places in ORDER."""
    stay_apart()
    keys, order = load_i64(args + AT.keys), load_i64(args + AT.order)
    border(v, v, m, peak, peak, np.float64(k), False, True, args)
    low, ties = np.float32(load_f64(args + AT.low)), load_i64(args + AT.ties)
    count = keep(v, v, m, out_ids, True, low, ties, out_ids, keys, args)
    for i in range(count):
        store_i64(order + 8 * i, i)
    for root in range(count // 2 - 1, -1, -1):
        sink(keys, order, root, count)
    return count
