"""What the samplers of choice.py do to a list of candidates, one helper for each.

The arguments are as in selection.py; ``stage`` is the address of a stage's record
(sampling_arguments.py): its code and its parameters.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from llmgen.backends.cpu.kernels.abi import helper, stay_apart
from llmgen.backends.cpu.kernels.sampling import (
    dot_of_block,
    lane_maxima,
    moments_of_block,
    scaled_total_of_block,
    total_of_block,
)
from llmgen.backends.cpu.kernels.sampling_arguments import (
    BLOCK,
    FINE,
    LANES,
    STAGES,
    DynamicTemperature,
    MinP,
    Mirostat1,
    Mirostat2,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    offsets,
)
from llmgen.backends.cpu.kernels.selection import AT, LN_2, border, exp, heap_of_best, log, pop
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

TOP_K, TOP_P, TYPICAL, MIN_P, TOP_N_SIGMA = map(STAGES.index, (TopK, TopP, Typical, MinP, TopNSigma))
MIROSTAT_1, MIROSTAT_2 = STAGES.index(Mirostat1), STAGES.index(Mirostat2)
_top_k, _top_p, _typical, _min_p = offsets(TopK, 1), offsets(TopP, 1), offsets(Typical, 1), offsets(MinP, 1)
_top_n_sigma, _dynamic = offsets(TopNSigma, 1), offsets(DynamicTemperature, 1)
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
def peak_of(v, m, args):  # type: ignore[no-untyped-def]
    """The largest, having filled MAXIMA."""
    stay_apart()
    return lane_maxima(v, m, load_i64(args + AT.spare), load_i64(args + AT.maxima))


@helper
def total_of(v, m, peak, with_dot, args):  # type: ignore[no-untyped-def]
    """Sum of e^(v - peak); DOT becomes the sum of e^(v - peak) (v - peak) where that is asked for."""
    stay_apart()
    spare = load_i64(args + AT.spare)
    total, dot = 0.0, 0.0
    if m > FINE:
        for start in range(0, m, BLOCK):
            total += np.float64(total_of_block(v, start, m, spare, splat(peak)))
            if with_dot:
                dot += np.float64(dot_of_block(v, start, m, spare, splat(peak)))
    else:
        for i in range(m):
            distance = np.float64(load_f32(v + 4 * i)) - np.float64(peak)
            own = exp(distance, args)
            total += own
            if own > 0.0:
                dot += own * distance
    store_f64(args + AT.dot, dot)
    return total


@helper
def _scaled_total(v, m, peak, divisor, args):  # type: ignore[no-untyped-def]
    """Sum of e^((v - peak) / divisor); of very many, SUMS has that of each block."""
    stay_apart()
    total = 0.0
    if m <= FINE:
        for i in range(m):
            total += exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), args)
        return total
    for start in range(0, m, BLOCK):
        part = scaled_total_of_block(v, start, m, load_i64(args + AT.spare), splat(peak), splat(divisor))
        store_f32(load_i64(args + AT.sums) + 4 * (start // BLOCK), part)
        total += np.float64(part)
    return total


@helper
def draw(v, m, peak, divisor, args):  # type: ignore[no-untyped-def]
    """The index that the uniform draw falls on: the first whose cumulative weight exceeds it.

    Of very many, first the block, then within it.
    """
    stay_apart()
    total = _scaled_total(v, m, peak, divisor, args)
    goal = load_f64(args + AT.u) * total
    first, stop = 0, m
    if m > FINE:
        cumulative, block, before = 0.0, 0, 0.0
        for i in range(-(-m // BLOCK)):
            part = np.float64(load_f32(load_i64(args + AT.sums) + 4 * i))
            if part > 1e-30:
                block, before = i, cumulative
            cumulative += part
            if cumulative > goal and part > 1e-30:
                break
        first, stop = block * BLOCK, min(m, (block + 1) * BLOCK)
        inside = 0.0
        for i in range(first, stop):
            inside += exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), args)
        goal = min(max(goal - before, 0.0), inside)
    cumulative, chosen = 0.0, 0
    for i in range(first, stop):
        own = exp(np.float64((load_f32(v + 4 * i) - peak) / divisor), args)
        cumulative += own
        if own > 0.0:
            chosen = i
            store_f64(args + AT.share, own / total)
        if cumulative > goal:
            break
    return chosen


@helper
def _deviation(v, m, peak, args):  # type: ignore[no-untyped-def]
    """The standard deviation of the finite values."""
    stay_apart()
    total, square, count = 0.0, 0.0, m
    origin = peak - np.float32(20)
    if m > FINE:
        for start in range(0, m, BLOCK):
            part, part_square = moments_of_block(v, start, m, load_i64(args + AT.spare), origin)
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
def excluded(v, m, low, weight, peak, args):  # type: ignore[no-untyped-def]
    """XTC: all with e^(v - peak) of at least ``weight`` but the last in order become NaN; their number.

    ``low`` is a bound under which there are none.  Nothing happens where there are fewer than two.
    """
    stay_apart()
    maxima = load_i64(args + AT.maxima)
    above, least, last = 0, np.float32(np.inf), 0
    for sweep in range(2):
        for start in range(0, m, BLOCK):
            lanes = maxima + 4 * (start // BLOCK) * LANES
            if not max_f32x16(load_f32x16(lanes)) >= low:
                continue
            for i in range(start, min(m, start + BLOCK)):
                value = load_f32(v + 4 * i)
                if not value >= low or value == -np.inf:
                    continue
                own = exp(np.float64(value) - np.float64(peak), args)
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
def _power(base, exponent, args):  # type: ignore[no-untyped-def]
    """base ** exponent for a base from 0 to 1."""
    stay_apart()
    if exponent == 0.0 or base >= 1.0:
        return 1.0
    if base < 1e-290:
        return 0.0
    return base if exponent == 1.0 else exp(-exponent * log(1.0 / base, args), args)


@helper
def dynamic_temperature(v, m, peak, stage, args):  # type: ignore[no-untyped-def]
    """The temperature for the entropy of these candidates."""
    stay_apart()
    total = total_of(v, m, peak, True, args)
    entropy = max(0.0, log(total, args) - load_f64(args + AT.dot) / total)
    low, high = load_f64(stage + _dynamic.low), load_f64(stage + _dynamic.high)
    exponent = load_f64(stage + _dynamic.exponent)
    share = min(1.0, entropy / log(np.float64(m), args))
    return max(low + (high - low) * _power(share, exponent, args), 1e-6)


@helper
def _keep_count(v, m, peak, divisor, n_vocab, args):  # type: ignore[no-untyped-def]
    """How many Mirostat 1 keeps (Basu et al. 2020, arXiv:2007.14966), at least 1.

    The best 100 give an estimate of Zipf's exponent, s = sum t_i b_i / sum t_i^2 with
    t_i = ln((i + 2) / (i + 1)) and b_i = ln(p_i / p_(i + 1)).  With e = s - 1 that makes
    k = (e 2^mu / (1 - N^-e))^(1 / s); in the limit e -> 0 the first factor is 1 / ln N, and
    s -> 0 keeps everything.
    """
    stay_apart()
    order, keys = load_i64(args + AT.order), load_i64(args + AT.keys)
    count = heap_of_best(v, m, _ESTIMATE_FROM, peak, order, args)
    slope, squares, found, before = 0.0, 0.0, 0, 0.0
    zipf = load_i64(args + AT.zipf)
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
    e, ln_n = s - 1.0, log(np.float64(n_vocab), args)
    if e > 1e-6:
        factor = e / (1.0 - exp(-e * ln_n, args))
    elif e < -1e-6:
        power = exp(e * ln_n, args)  # e / (1 - 1 / power)
        factor = e * power / (power - 1.0)
    else:
        factor = 1.0 / ln_n
    ln_factor = log(factor, args) if factor >= 1.0 else -log(1.0 / factor, args)
    exponent = (load_f64(args + AT.mu) * LN_2 + ln_factor) / s
    if exponent >= ln_n:
        return n_vocab
    return max(1, int(1.0 / exp(-exponent, args))) if exponent > 0.0 else 1


@helper
def cut(code, stage, v, m, keys, peak, divisor, n_vocab, args):  # type: ignore[no-untyped-def]
    """A sampler that keeps some candidates: whether it does, and then LOW and TIES say which (by ``keys``)."""
    stay_apart()
    if code == MIN_P or code == TOP_N_SIGMA or code == MIROSTAT_2:
        low, ties = np.float64(peak), m
        if code == MIN_P:
            low += load_f64(stage + _min_p.ln_p)
        elif code == TOP_N_SIGMA:
            low -= load_f64(stage + _top_n_sigma.n) * _deviation(v, m, peak, args)
        else:
            total = _scaled_total(v, m, peak, divisor, args)
            bound = log(total, args) - load_f64(args + AT.mu) * LN_2
            if bound > 0.0:  # none is likely enough: the best one stays
                ties = 1
            else:  # rounding: a little too many, of which likely_enough keeps the right ones
                low += bound * np.float64(divisor)
                low -= 1e-4 * (1.0 + abs(low))
            store_f64(args + AT.sum, total)
        store_f64(args + AT.low, low)
        store_i64(args + AT.ties, ties)
        return True
    top, goal = peak, 0.0
    counting, beyond = code == TOP_K or code == MIROSTAT_1, code == TYPICAL
    if code == TOP_K:
        goal = load_f64(stage + _top_k.k)
    elif code == MIROSTAT_1:
        goal = np.float64(_keep_count(v, m, peak, divisor, n_vocab, args))
    if counting and goal >= m:
        return False
    if code == TOP_P:
        goal = load_f64(stage + _top_p.p) * total_of(v, m, peak, False, args)
    elif code == TYPICAL:
        total = total_of(v, m, peak, True, args)
        goal = load_f64(stage + _typical.p) * total
        center = np.float32(np.float64(peak) + load_f64(args + AT.dot) / total)  # a logit with -ln p = H
        _nearness(v, m, center, keys)
        top = peak_of(keys, m, args)
    border(keys, v, m, top, peak, goal, beyond, counting, args)
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
