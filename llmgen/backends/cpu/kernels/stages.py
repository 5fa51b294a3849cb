"""What the samplers of choice.py do to a list of candidates, one helper for each.

The arguments are as in selection.py; ``places`` is int64 memory in the order of
CHOICE_PLACES, ``stage`` the address of a stage: its code and its parameters.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from llmgen.backends.cpu.kernels.abi import helper, stay_apart
from llmgen.backends.cpu.kernels.layout import (
    CHOICE_FIELDS,
    CHOICE_PLACES,
    CHOICE_STAGES,
    SAMPLING_BLOCK,
    SAMPLING_LANES,
)
from llmgen.backends.cpu.kernels.sampling import (
    dot_of_block,
    lane_maxima,
    moments_of_block,
    scaled_total_of_block,
    total_of_block,
)
from llmgen.backends.cpu.kernels.selection import (
    FINE,
    LN_2,
    LOW,
    SUM,
    TIES,
    border,
    exp,
    keep,
    log,
    pop,
    sink,
)
from llmgen.backends.cpu.kernels.simd import (
    absolute,
    load_f32,
    load_f32x16,
    load_f64,
    load_i64,
    max_f32x16,
    splat,
    store_f32,
    store_f32x16,
    store_f64,
    store_i64,
    zero_f32x16,
)

U, MU, ZIPF, SHARE, PEAK, DOT = (
    8 * CHOICE_FIELDS[name] for name in ("u", "mu", "zipf", "share", "peak", "dot")
)
WORK, IDS, MAXIMA, SUMS, KEYS, ORDER, MARKS, SPARE, BIASED, BIASES, N_BIASED, MASKED, N_MASKED = (
    8 * i for i in range(13)
)
HISTORY, N_HISTORY, REPEATS, LENGTHS, BREAKERS, SINCE = (8 * i for i in range(13, len(CHOICE_PLACES)))
TOP_K, TYPICAL, TOP_P, MIN_P, SIGMA, XTC, TEMPERATURE, DYNAMIC, MIROSTAT_1, MIROSTAT_2, PENALTIES, DRY = (
    range(len(CHOICE_STAGES))
)
_ESTIMATE_FROM = 100  # the best tokens from which Mirostat 1 estimates


@helper
def copied(v, m, work):  # type: ignore[no-untyped-def]
    """The logits in memory that may be written."""
    stay_apart()
    if v != work:
        for i in range(0, 4 * (m // 16 * 16), 64):
            store_f32x16(work + i, load_f32x16(v + i))
        for i in range(4 * (m // 16 * 16), 4 * m, 4):
            store_f32(work + i, load_f32(v + i))
    return work


@helper
def scale(v, m, peak, divisor, out):  # type: ignore[no-untyped-def]
    """out = (v - peak) / divisor."""
    stay_apart()
    for i in range(0, 4 * (m // 16 * 16), 64):
        store_f32x16(out + i, (load_f32x16(v + i) - splat(peak)) / splat(divisor))
    for i in range(4 * (m // 16 * 16), 4 * m, 4):
        store_f32(out + i, types.float32((load_f32(v + i) - peak) / divisor))


@helper
def _nearness(v, m, center, out):  # type: ignore[no-untyped-def]
    """out = -|v - center|."""
    stay_apart()
    for i in range(0, 4 * (m // 16 * 16), 64):
        store_f32x16(out + i, zero_f32x16() - absolute(load_f32x16(v + i) - splat(center)))
    for i in range(4 * (m // 16 * 16), 4 * m, 4):
        store_f32(out + i, -abs(load_f32(v + i) - center))


@helper
def peak_of(v, m, places):  # type: ignore[no-untyped-def]
    """The largest, having filled MAXIMA."""
    stay_apart()
    return lane_maxima(v, m, load_i64(places + SPARE), load_i64(places + MAXIMA))


@helper
def total_of(v, m, peak, with_dot, places, values):  # type: ignore[no-untyped-def]
    """Sum of e^(v - peak); DOT becomes the sum of e^(v - peak) (v - peak) where that is asked for."""
    stay_apart()
    spare = load_i64(places + SPARE)
    total, dot = 0.0, 0.0
    if m > FINE:
        for start in range(0, m, SAMPLING_BLOCK):
            total += np.float64(total_of_block(v, start, m, spare, splat(peak)))
            if with_dot:
                dot += np.float64(dot_of_block(v, start, m, spare, splat(peak)))
    else:
        for i in range(m):
            distance = np.float64(load_f32(v + 4 * i)) - np.float64(peak)
            own = exp(distance, values)
            total += own
            if own > 0.0:
                dot += own * distance
    store_f64(values + DOT, dot)
    return total


@helper
def _scaled_total(v, m, peak, divisor, places, values):  # type: ignore[no-untyped-def]
    """Sum of e^((v - peak) / divisor); of very many, SUMS has that of each block."""
    stay_apart()
    total = 0.0
    if m <= FINE:
        for i in range(m):
            total += exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), values)
        return total
    for start in range(0, m, SAMPLING_BLOCK):
        part = scaled_total_of_block(v, start, m, load_i64(places + SPARE), splat(peak), splat(divisor))
        store_f32(load_i64(places + SUMS) + 4 * (start // SAMPLING_BLOCK), part)
        total += np.float64(part)
    return total


@helper
def draw(v, m, peak, divisor, places, values):  # type: ignore[no-untyped-def]
    """The index that the uniform draw falls on: the first whose cumulative weight exceeds it.

    Of very many, first the block, then within it.
    """
    stay_apart()
    total = _scaled_total(v, m, peak, divisor, places, values)
    goal = load_f64(values + U) * total
    first, stop = 0, m
    if m > FINE:
        cumulative, block, before = 0.0, 0, 0.0
        for i in range(-(-m // SAMPLING_BLOCK)):
            part = np.float64(load_f32(load_i64(places + SUMS) + 4 * i))
            if part > 1e-30:
                block, before = i, cumulative
            cumulative += part
            if cumulative > goal and part > 1e-30:
                break
        first, stop = block * SAMPLING_BLOCK, min(m, (block + 1) * SAMPLING_BLOCK)
        inside = 0.0
        for i in range(first, stop):
            inside += exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), values)
        goal = min(max(goal - before, 0.0), inside)
    cumulative, chosen = 0.0, 0
    for i in range(first, stop):
        own = exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), values)
        cumulative += own
        if own > 0.0:
            chosen = i
            store_f64(values + SHARE, own / total)
        if cumulative > goal:
            break
    return chosen


@helper
def _deviation(v, m, peak, places):  # type: ignore[no-untyped-def]
    """The standard deviation of the finite values."""
    stay_apart()
    total, square, count = 0.0, 0.0, m
    origin = peak - np.float32(20)
    if m > FINE:
        for start in range(0, m, SAMPLING_BLOCK):
            part, part_square = moments_of_block(v, start, m, load_i64(places + SPARE), origin)
            total += np.float64(part)
            square += np.float64(part_square)
    if m <= FINE or not square < 1e300:  # few, or some are infinite
        total, square, count = 0.0, 0.0, 0
        for i in range(m):
            value = load_f32(v + 4 * i)
            if value > -np.inf:
                distance = np.float64(value) - np.float64(origin)
                count += 1
                total += distance
                square += distance * distance
    mean = total / count
    return np.sqrt(max(square / count - mean * mean, 0.0))


@helper
def excluded(v, m, maxima, low, weight, peak, values):  # type: ignore[no-untyped-def]
    """XTC: all with e^(v - peak) of at least ``weight`` but the last in order become NaN; their number.

    ``low`` is a bound under which there are none.  Nothing happens where there are fewer than two.
    """
    stay_apart()
    above, least, last = 0, np.float32(np.inf), 0
    for sweep in range(2):
        for start in range(0, m, SAMPLING_BLOCK):
            lanes = maxima + 4 * (start // SAMPLING_BLOCK) * SAMPLING_LANES
            if not max_f32x16(load_f32x16(lanes)) >= low:
                continue
            for i in range(start, min(m, start + SAMPLING_BLOCK)):
                value = load_f32(v + 4 * i)
                if not value >= low or value == -np.inf:
                    continue
                own = exp(np.float64(value) - np.float64(peak), values)
                if own == 0.0 or own < weight:
                    continue
                if sweep == 0:
                    above += 1
                    if value <= least:
                        least, last = value, i
                elif i != last:
                    store_f32(v + 4 * i, np.float32(np.nan))
        if above < 2:
            return 0
    return above - 1


@helper
def _power(base, exponent, values):  # type: ignore[no-untyped-def]
    """base ** exponent for a base from 0 to 1."""
    stay_apart()
    if exponent == 0.0 or base >= 1.0:
        return 1.0
    if base < 1e-290:
        return 0.0
    return base if exponent == 1.0 else exp(-exponent * log(1.0 / base, values), values)


@helper
def dynamic_temperature(v, m, peak, stage, places, values):  # type: ignore[no-untyped-def]
    """The temperature for the entropy of these candidates."""
    stay_apart()
    total = total_of(v, m, peak, True, places, values)
    entropy = max(0.0, log(total, values) - load_f64(values + DOT) / total)
    low, high, exponent = load_f64(stage + 8), load_f64(stage + 16), load_f64(stage + 24)
    share = min(1.0, entropy / log(np.float64(m), values))
    return max(low + (high - low) * _power(share, exponent, values), 1e-6)


@helper
def _keep_count(v, m, peak, divisor, n_vocab, places, values):  # type: ignore[no-untyped-def]
    """How many Mirostat 1 keeps: see sampling/mirostat.py."""
    stay_apart()
    order, keys, maxima = load_i64(places + ORDER), load_i64(places + KEYS), load_i64(places + MAXIMA)
    spare = load_i64(places + SPARE)
    border(v, v, m, maxima, peak, peak, np.float64(_ESTIMATE_FROM), False, True, spare, order, values)
    low, ties = np.float32(load_f64(values + LOW)), int(load_f64(values + TIES))
    count = keep(v, v, m, order, True, maxima, low, ties, spare, order, keys)
    for i in range(count):
        store_i64(order + 8 * i, i)
    for root in range(count // 2 - 1, -1, -1):
        sink(keys, order, root, count)
    slope, squares, found, before = 0.0, 0.0, 0, 0.0
    zipf = int(load_f64(values + ZIPF))
    for i in range(count):
        logit = load_f32(keys + 4 * pop(keys, order, count - i))
        value = np.float64((logit - peak) / divisor)
        if not value > -np.inf:
            break
        if i > 0:
            t = load_f64(zipf + 8 * (i - 1))
            slope += t * (before - value)
            squares += t * t
        before = value
        found += 1
    if found < 2:
        return 1
    s = slope / squares
    if s < 1e-3:
        return n_vocab
    e, ln_n = s - 1.0, log(np.float64(n_vocab), values)
    if e > 1e-6:
        factor = e / (1.0 - exp(-e * ln_n, values))
    elif e < -1e-6:
        power = exp(e * ln_n, values)  # e / (1 - 1 / power)
        factor = e * power / (power - 1.0)
    else:
        factor = 1.0 / ln_n
    ln_factor = log(factor, values) if factor >= 1.0 else -log(1.0 / factor, values)
    exponent = (load_f64(values + MU) * LN_2 + ln_factor) / s
    if exponent >= ln_n:
        return n_vocab
    return max(1, int(1.0 / exp(-exponent, values))) if exponent > 0.0 else 1


@helper
def cut(code, stage, v, m, keys, peak, divisor, n_vocab, places, values):  # type: ignore[no-untyped-def]
    """A sampler that keeps some candidates: whether it does, and then LOW and TIES say which (by ``keys``)."""
    stay_apart()
    parameter = load_f64(stage + 8)
    goal, top, beyond = parameter, peak, False
    low, ties = np.float64(peak), np.float64(m)
    if code == MIN_P:
        low += parameter
    elif code == SIGMA:
        low -= parameter * _deviation(v, m, peak, places)
    elif code == MIROSTAT_2:
        total = _scaled_total(v, m, peak, divisor, places, values)
        bound = log(total, values) - load_f64(values + MU) * LN_2
        if bound > 0.0:
            ties = np.float64(1)
        else:  # rounding: a little too many, of which likely_enough keeps the right ones
            low += bound * np.float64(divisor)
            low -= 1e-4 * (1.0 + abs(low))
        store_f64(values + SUM, total)
    if code == MIN_P or code == SIGMA or code == MIROSTAT_2:
        store_f64(values + LOW, low)
        store_f64(values + TIES, ties)
        return True
    counting = code == TOP_K or code == MIROSTAT_1
    if code == MIROSTAT_1:
        goal = np.float64(_keep_count(v, m, peak, divisor, n_vocab, places, values))
    if counting and goal >= m:
        return False
    if not counting:
        total = total_of(v, m, peak, code == TYPICAL, places, values)
        goal *= total
        if code == TYPICAL:
            beyond = True
            center = np.float32(np.float64(peak) + load_f64(values + DOT) / total)  # a logit with -ln p = H
            _nearness(v, m, center, keys)
            top = peak_of(keys, m, places)
    spare, order = load_i64(places + SPARE), load_i64(places + ORDER)
    maxima = load_i64(places + MAXIMA)
    border(keys, v, m, maxima, top, peak, goal, beyond, counting, spare, order, values)
    return True


@helper
def likely_enough(v, m, ids, bound):  # type: ignore[no-untyped-def]
    """Keep those of at least ``bound``, exactly; their number."""
    stay_apart()
    count = 0
    for i in range(m):
        if load_f32(v + 4 * i) >= bound:
            store_f32(v + 4 * count, load_f32(v + 4 * i))
            store_i64(ids + 8 * count, load_i64(ids + 8 * i))
            count += 1
    return count
