"""Natives for the sampler: a whole step in one call, for the samplers that are used most.

What they compute, and in which order and precision, is what generation/filters.py says;
there numpy needs dozens of calls, each of which finds its code pushed out of the caches by
the model's weights.  Candidates are int64 token ids in a list of the caller's; their logits
stay where they are.  Addresses: ``x`` float32 [n], ``values`` float64 in the order of
CHOICE_FIELDS, ``spare`` float32 [32] (see sampling.py), ``room`` float32 [choice_room],
``ids`` int64 [n].
"""

from __future__ import annotations

import numpy as np

from llmgen.kernels.abi import I, inline, native
from llmgen.kernels.layout import CHOICE_FIELDS, SAMPLING_BLOCK, SAMPLING_LANES
from llmgen.kernels.sampling import dot_of_block, lane_maxima, scaled_total_of_block, total_of_block
from llmgen.kernels.simd import (
    load_f32,
    load_f32x16,
    load_f64,
    load_i64,
    max_f32x16,
    splat,
    store_f32,
    store_f64,
    store_i64,
)

TEMP, TOP_K, TYPICAL_P, TOP_P, LOG_MIN_P, MU, U, SCRATCH, PEAK, SHARE, TOTAL = (
    8 * i for i in range(len(CHOICE_FIELDS))
)
BY_LOGIT, BY_ID, BY_DISTANCE = 0, 1, 2


@inline
def _exp(d, values):  # type: ignore[no-untyped-def]
    """e^d for d <= 0 in float64, to about 1 ulp: 2^n times the Taylor series of e^r, |r| <= ln(2) / 2."""
    if not d > -700.0:
        return 0.0
    n = int(d * 1.4426950408889634 - 0.5)
    r = (d - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    p = 1.0
    for k in range(13, 0, -1):
        p = 1.0 + p * r / k
    scratch = values + SCRATCH
    store_i64(scratch, (n + 1023) << 52)
    return p * load_f64(scratch)


@inline
def _log(total, values):  # type: ignore[no-untyped-def]
    """ln of a total of at least 1, by Newton's method on e^-y = 1 / total."""
    y = 0.0
    rest = total
    while rest >= 2.0:
        rest *= 0.5
        y += 0.6931471805599453
    for _ in range(6):
        y += total * _exp(-y, values) - 1.0
    return y


@inline
def _before(x, a, b, mode, center):  # type: ignore[no-untyped-def]
    """Whether candidate a comes before b."""
    if mode == BY_ID:
        return a < b
    u, v = load_f32(x + 4 * a), load_f32(x + 4 * b)
    if mode == BY_DISTANCE:
        u, v = -abs(u - center), -abs(v - center)
    return u > v or (u == v and a < b)


@inline
def _sink(x, ids, root, count, mode, center):  # type: ignore[no-untyped-def]
    """Restore the heap, the last in order on top, below ``root``."""
    item = load_i64(ids + 8 * root)
    while 2 * root + 1 < count:
        child = 2 * root + 1
        if child + 1 < count and _before(
            x, load_i64(ids + 8 * child), load_i64(ids + 8 * child + 8), mode, center
        ):
            child += 1
        below = load_i64(ids + 8 * child)
        if not _before(x, item, below, mode, center):
            break
        store_i64(ids + 8 * root, below)
        root = child
    store_i64(ids + 8 * root, item)


@inline
def _sort(x, ids, count, mode, center):  # type: ignore[no-untyped-def]
    """Heap sort of the candidates."""
    for root in range(count // 2 - 1, -1, -1):
        _sink(x, ids, root, count, mode, center)
    for last in range(count - 1, 0, -1):
        top = load_i64(ids)
        store_i64(ids, load_i64(ids + 8 * last))
        store_i64(ids + 8 * last, top)
        _sink(x, ids, 0, last, mode, center)


@inline
def _kth(maxima, n_maxima, k, heap):  # type: ignore[no-untyped-def]
    """The k-th largest of the maxima, through a heap of k with the least on top."""
    if k >= n_maxima:
        return np.float32(-np.inf)
    for i in range(k):  # sorted, the least first, is a heap
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


@inline
def _gather(x, n, maxima, low, high, ids):  # type: ignore[no-untyped-def]
    """The candidates with low <= logit <= high; their number."""
    count = 0
    n_maxima = -(-n // SAMPLING_BLOCK) * SAMPLING_LANES
    for group in range(n_maxima):
        if load_f32(maxima + 4 * group) >= low:
            block = group // SAMPLING_LANES * SAMPLING_BLOCK
            for i in range(block + group % SAMPLING_LANES, min(n, block + SAMPLING_BLOCK), SAMPLING_LANES):
                value = load_f32(x + 4 * i)
                if value >= low and value <= high:
                    store_i64(ids + 8 * count, i)
                    count += 1
    return count


@inline
def _gather_in_order(x, n, maxima, low, ids):  # type: ignore[no-untyped-def]
    """The candidates with low <= logit by rising id; their number."""
    count = 0
    for start in range(0, n, SAMPLING_BLOCK):
        lanes = maxima + 4 * (start // SAMPLING_BLOCK) * SAMPLING_LANES
        if max_f32x16(load_f32x16(lanes)) >= low:
            for i in range(start, min(n, start + SAMPLING_BLOCK)):
                store_i64(ids + 8 * count, i)  # kept where the count moves on: no branch to guess wrong
                count += load_f32(x + 4 * i) >= low
    return count


@inline
def _best(x, n, maxima, k, heap, ids):  # type: ignore[no-untyped-def]
    """The k best candidates in order; their number."""
    n_maxima = -(-n // SAMPLING_BLOCK) * SAMPLING_LANES
    bound = _kth(maxima, n_maxima, k, heap)
    count = _gather(x, n, maxima, bound, np.float32(np.inf), ids)
    _sort(x, ids, count, BY_LOGIT, np.float32(0))
    return min(count, k)


@inline
def _weight(x, i, peak, values):  # type: ignore[no-untyped-def]
    return _exp(np.float64(load_f32(x + 4 * i)) - np.float64(peak), values)


@inline
def _subset_total(x, ids, count, peak, values):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(count):
        total += _weight(x, load_i64(ids + 8 * i), peak, values)
    return total


@inline
def _top(x, ids, count):  # type: ignore[no-untyped-def]
    """The largest logit of some candidates."""
    top = np.float32(-np.inf)
    for i in range(count):
        top = max(top, load_f32(x + 4 * load_i64(ids + 8 * i)))
    return top


@inline
def _reach(x, ids, count, mass, beyond, peak, values):  # type: ignore[no-untyped-def]
    """How many of the first candidates it takes to sum to ``mass``, or to exceed it where ``beyond``."""
    cumulative = 0.0
    for i in range(count):
        cumulative += _weight(x, load_i64(ids + 8 * i), peak, values)
        if cumulative > mass or (not beyond and cumulative >= mass):
            return i + 1
    return count


@inline
def _keep_over(x, ids, count, bound):  # type: ignore[no-untyped-def]
    """Keep the candidates with a logit of at least ``bound``, in their order; their number."""
    kept = 0
    for i in range(count):
        token = load_i64(ids + 8 * i)
        if load_f32(x + 4 * token) >= bound:
            store_i64(ids + 8 * kept, token)
            kept += 1
    return kept


@inline
def _whole_total(x, n, spare, peak):  # type: ignore[no-untyped-def]
    total = 0.0
    for start in range(0, n, SAMPLING_BLOCK):
        total += np.float64(total_of_block(x, start, n, spare, splat(peak)))
    return total


@inline
def _typical(x, n, ids, count, maxima, spare, p, peak, values):  # type: ignore[no-untyped-def]
    """Locally typical, of ``count`` candidates or (-1) all; the number of those that stay, in the order they had."""
    dot = 0.0
    if count < 0:
        total = _whole_total(x, n, spare, peak)
        for start in range(0, n, SAMPLING_BLOCK):
            dot += np.float64(dot_of_block(x, start, n, spare, splat(peak)))
    else:
        total = _subset_total(x, ids, count, peak, values)
        for i in range(count):
            token = load_i64(ids + 8 * i)
            distance = np.float64(load_f32(x + 4 * token)) - np.float64(peak)
            if distance > -700.0:
                dot += _weight(x, token, peak, values) * distance
    center = np.float32(np.float64(peak) + dot / total)  # ln total - H: what a logit is if -ln p = H
    mode = BY_ID if count < 0 else BY_LOGIT
    if count < 0:
        reach = np.float32(1)
        while True:
            count = _gather(x, n, maxima, center - reach, center + reach, ids)
            if count == n or reach > 100 or _subset_total(x, ids, count, peak, values) > p * total:
                break
            reach = reach * np.float32(2)
        if reach > 100:
            count = _gather(x, n, maxima, np.float32(-np.inf), np.float32(np.inf), ids)
    _sort(x, ids, count, BY_DISTANCE, center)
    count = _reach(x, ids, count, p * total, True, peak, values)
    _sort(x, ids, count, mode, center)
    return count


@inline
def _nucleus(x, n, ids, maxima, spare, p, peak, values):  # type: ignore[no-untyped-def]
    """The fewest most likely of all that together reach p, in order; their number."""
    mass = p * _whole_total(x, n, spare, peak)
    count = 0
    for distance in range(4, 28, 4):
        low = peak - np.float32(distance) if distance < 24 else np.float32(-np.inf)
        count = _gather(x, n, maxima, low, np.float32(np.inf), ids)
        if count == n or _subset_total(x, ids, count, peak, values) > mass:
            break
    _sort(x, ids, count, BY_LOGIT, np.float32(0))
    return _reach(x, ids, count, mass, False, peak, values)


@inline
def _scaled(x, token, peak, temp):  # type: ignore[no-untyped-def]
    return np.float64((load_f32(x + 4 * token) - peak) / temp)


@inline
def _draw(x, ids, count, peak, temp, values):  # type: ignore[no-untyped-def]
    """The candidate that a uniform draw falls on, at a temperature; ``peak`` is their largest logit."""
    total = 0.0
    for i in range(count):
        total += _exp(_scaled(x, load_i64(ids + 8 * i), peak, temp), values)
    goal = load_f64(values + U) * total
    cumulative, chosen, share = 0.0, 0, 0.0
    for i in range(count):
        weight = _exp(_scaled(x, load_i64(ids + 8 * i), peak, temp), values)
        cumulative += weight
        if weight > 0.0:
            chosen, share = load_i64(ids + 8 * i), weight / total
        if cumulative > goal:
            break
    store_f64(values + SHARE, share)
    return chosen


@inline
def _scaled_sums(x, n, spare, peak, temp, sums):  # type: ignore[no-untyped-def]
    """The sum of e^((x - peak) / temp) over all, and of each block in ``sums``."""
    total = 0.0
    for start in range(0, n, SAMPLING_BLOCK):
        part = scaled_total_of_block(x, start, n, spare, splat(peak), splat(temp))
        store_f32(sums + 4 * (start // SAMPLING_BLOCK), part)
        total += np.float64(part)
    return total


@inline
def _draw_from_all(x, n, ids, spare, peak, temp, sums, values):  # type: ignore[no-untyped-def]
    """The same of all tokens: first the block, then within it."""
    goal = load_f64(values + U) * _scaled_sums(x, n, spare, peak, temp, sums)
    cumulative, block, before = 0.0, 0, 0.0
    for i in range(-(-n // SAMPLING_BLOCK)):
        part = np.float64(load_f32(sums + 4 * i))
        if part > 1e-30:
            block, before = i, cumulative
        cumulative += part
        if cumulative > goal and part > 1e-30:
            break
    inside = 0.0
    for i in range(block * SAMPLING_BLOCK, min(n, (block + 1) * SAMPLING_BLOCK)):
        inside += _exp(_scaled(x, i, peak, temp), values)
    goal = min(max(goal - before, 0.0), inside)
    cumulative, chosen = 0.0, 0
    for i in range(block * SAMPLING_BLOCK, min(n, (block + 1) * SAMPLING_BLOCK)):
        weight = _exp(_scaled(x, i, peak, temp), values)
        cumulative += weight
        if weight > 0.0:
            chosen = i
        if cumulative > goal:
            break
    return chosen


@inline
def _mirostat(x, n, ids, maxima, spare, peak, temp, sums, values):  # type: ignore[no-untyped-def]
    """Mirostat 2: those with a surprise of at most mu bits, or the best one; draws, and returns the token."""
    total = _scaled_sums(x, n, spare, peak, temp, sums)
    bound = np.float32(_log(total, values) - load_f64(values + MU) * 0.6931471805599453)
    if bound > 0:
        count = _best(x, n, maxima, 1, sums, ids)
    else:
        low = peak + bound * temp
        low = low - np.float32(1e-4) * (np.float32(1) + abs(low))  # rounding: a little too many, then exactly
        found = _gather_in_order(x, n, maxima, low, ids)
        count = 0
        for i in range(found):
            token = load_i64(ids + 8 * i)
            if (load_f32(x + 4 * token) - peak) / temp >= bound:
                store_i64(ids + 8 * count, token)
                count += 1
    return _draw(x, ids, count, peak, temp, values)


@inline
def _filtered(x, n, ids, maxima, spare, heap, peak, values):  # type: ignore[no-untyped-def]
    """top_k, typical, top_p, min_p: the number of candidates that stay, or -1 for all."""
    count = -1
    ordered = False
    k = int(load_f64(values + TOP_K))
    if 0 < k < n:
        count = _best(x, n, maxima, k, heap, ids)
        ordered = True
    p = load_f64(values + TYPICAL_P)
    if p < 1.0 and count != 1:
        count = _typical(x, n, ids, count, maxima, spare, p, peak, values)
    p = load_f64(values + TOP_P)
    if p < 1.0 and count != 1:
        if count < 0:
            count = _nucleus(x, n, ids, maxima, spare, p, peak, values)
        else:
            top = _top(x, ids, count)
            if not ordered:
                _sort(x, ids, count, BY_LOGIT, np.float32(0))
            count = _reach(x, ids, count, p * _subset_total(x, ids, count, top, values), False, top, values)
    log_p = load_f64(values + LOG_MIN_P)
    if log_p > -np.inf:
        if count < 0:
            count = _gather_in_order(x, n, maxima, np.float32(np.float64(peak) + log_p), ids)
        else:
            count = _keep_over(x, ids, count, np.float32(np.float64(_top(x, ids, count)) + log_p))
    return count


@native(I(I, I, I, I, I, I))
def choose(x: int, n: int, values: int, spare: int, room: int, ids: int) -> int:
    """One sampling step: the token; -1 where the largest logit is no finite number."""
    blocks = -(-n // SAMPLING_BLOCK)
    sums = room + 4 * SAMPLING_LANES * blocks
    heap = sums + 4 * blocks
    peak = lane_maxima(x, n, spare, room)
    if not (peak > -np.inf and peak < np.inf):
        return -1
    temp = np.float32(load_f64(values + TEMP))
    if temp == 0:
        count = _gather(x, n, room, peak, peak, ids)
        _sort(x, ids, count, BY_ID, np.float32(0))
        return load_i64(ids)
    if load_f64(values + MU) >= -1e300:
        return _mirostat(x, n, ids, room, spare, peak, temp, sums, values)
    count = _filtered(x, n, ids, room, spare, heap, peak, values)
    if count < 0:
        return _draw_from_all(x, n, ids, spare, peak, temp, sums, values)
    return _draw(x, ids, count, _top(x, ids, count), temp, values)


@native(I(I, I, I, I, I, I, I))
def head(x: int, n: int, k: int, values: int, spare: int, room: int, ids: int) -> int:
    """The k best tokens in order, with peak and total; their number, or -1 as above."""
    peak = lane_maxima(x, n, spare, room)
    if not (peak > -np.inf and peak < np.inf):
        return -1
    store_f64(values + PEAK, np.float64(peak))
    store_f64(values + TOTAL, _whole_total(x, n, spare, peak))
    if k == 0:
        return 0
    return _best(x, n, room, k, room + 4 * (SAMPLING_LANES + 1) * -(-n // SAMPLING_BLOCK), ids)
