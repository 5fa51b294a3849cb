"""A whole sampling step in one call, whatever the samplers and their order.

In numpy a step takes dozens of calls, and the model's weights have pushed the code of each
out of the caches (tests/naive/sampling is that version, the oracle of the tests).  ``args`` is
the address of the table ``Step``; a stage is the address of its record: see sampling_arguments.py.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import I, native
from llmgen.backends.cpu.kernels.repetition import DRY, PENALTIES, biased, dry, penalties
from llmgen.backends.cpu.kernels.sampling_arguments import (
    ORDER,
    STAGE_BYTES,
    STAGES,
    DynamicTemperature,
    Temperature,
    Xtc,
    offsets,
)
from llmgen.backends.cpu.kernels.selection import AT, LN_2, heap_of_best, keep, log, pop
from llmgen.backends.cpu.kernels.simd import load_f32, load_f64, load_i64, store_f64, store_i64
from llmgen.backends.cpu.kernels.stages import (
    MIROSTAT_1,
    MIROSTAT_2,
    TYPICAL,
    copied,
    cut,
    draw,
    dynamic_temperature,
    excluded,
    likely_enough,
    peak_of,
    scale,
    total_of,
)

XTC, TEMPERATURE, DYNAMIC = map(STAGES.index, (Xtc, Temperature, DynamicTemperature))
_xtc, _temperature = offsets(Xtc, 1), offsets(Temperature, 1)


@native(I(I, I, I))
def choose(x: int, n: int, args: int) -> int:
    """One sampling step: the token; -1 where the largest logit, which PEAK tells, is not finite.

    It leaves COUNT candidates: all if WHOLE, else those in IDS.  Their logits are in WORK if MOVED, else
    at ``x``; PEAK is still to be subtracted from them, and DIVISOR to divide them.
    """
    work, ids = load_i64(args + AT.work), load_i64(args + AT.ids)
    v, m, whole = biased(x, n, args), n, True
    n_stages = load_i64(args + AT.n_stages)
    divisor = np.float32(1)  # a temperature that is still to be applied
    peak, known = np.float32(0), False
    for number in range(n_stages):
        stage = load_i64(args + AT.stages) + STAGE_BYTES * number
        code = load_i64(stage)
        if code == PENALTIES or code == DRY:
            v, known = copied(v, m, work), False
            if code == PENALTIES:
                penalties(v, m, whole, n, stage, args)
            else:
                dry(v, m, whole, n, stage, args)
            continue
        if not known:
            peak, known = peak_of(v, m, args), True
            if not (peak > -np.inf and peak < np.inf):
                break
        if code == XTC:
            if load_i64(args + AT.xtc) != 0 and m > 1:
                weight = load_f64(stage + _xtc.threshold) * total_of(v, m, peak, False, args)
                low = np.float32(-np.inf)
                if weight > 1e-300:
                    low = peak - np.float32(log(1.0 / weight, args) if weight < 1.0 else 0.0)
                    low = low - np.float32(1e-3) * (np.float32(1) + abs(low))
                v = copied(v, m, work)
                if excluded(v, m, low, weight, peak, args) > 0:
                    m = keep(v, v, m, ids, whole, np.float32(-np.inf), m, ids, work, args)
                    whole, known = False, False
            continue
        if code == TEMPERATURE or code == DYNAMIC:
            if code == TEMPERATURE:
                divisor = np.float32(load_f64(stage + _temperature.divisor))
            elif m > 1:
                divisor = np.float32(dynamic_temperature(v, m, peak, stage, args))
            else:
                continue
            following = load_i64(stage + STAGE_BYTES) if number + 1 < n_stages else MIROSTAT_2
            if following == MIROSTAT_1 or following == MIROSTAT_2:
                continue  # on the fly
        else:
            keys = load_i64(args + AT.keys) if code == TYPICAL else v
            if cut(code, stage, v, m, keys, peak, divisor, n, args):
                low, ties = np.float32(load_f64(args + AT.low)), load_i64(args + AT.ties)
                m = keep(keys, v, m, ids, whole, low, ties, ids, work, args)
                v, whole, known = work, False, False
            if code != MIROSTAT_1 and code != MIROSTAT_2:
                continue
        scale(v, m, peak, divisor, work)
        v, divisor, known = work, np.float32(1), False
        if code == MIROSTAT_2 and ties != 1:  # one is the best, where none is likely enough
            bound = np.float32(log(load_f64(args + AT.sum), args) - load_f64(args + AT.mu) * LN_2)
            m = likely_enough(v, m, ids, bound)
    if not known:
        peak = peak_of(v, m, args)
    store_f64(args + AT.peak, np.float64(peak))
    if not (peak > -np.inf and peak < np.inf):
        return -1
    store_i64(args + AT.count, m)
    store_i64(args + AT.whole, 1 if whole else 0)
    store_i64(args + AT.moved, 1 if v == work else 0)
    store_f64(args + AT.divisor, np.float64(divisor))
    if load_i64(args + AT.greedy) != 0:
        index = 0
        while load_f32(v + 4 * index) != peak:
            index += 1
    else:
        index = draw(v, m, peak, divisor, args)
    return index if whole else load_i64(ids + 8 * index)


@native(I(I, I, I, I))
def head(x: int, n: int, k: int, args: int) -> int:
    """The k best (at most ORDER) in IDS, in order, with PEAK and SUM; their number, or -1 as above."""
    peak = peak_of(x, n, args)
    store_f64(args + AT.peak, np.float64(peak))
    if not (peak > -np.inf and peak < np.inf):
        return -1
    total = total_of(x, n, peak, False, args)
    count = min(k, n, ORDER)
    if count > 0:
        order, ids, keys = load_i64(args + AT.order), load_i64(args + AT.ids), load_i64(args + AT.keys)
        heap_of_best(x, n, count, peak, ids, args)
        for i in range(count):  # the ids move to where the heap's memory ends
            first = pop(keys, order, count - i)
            store_i64(order + 8 * (count - 1 - i), first)
        for i in range(count):
            store_i64(order + 8 * i, load_i64(ids + 8 * load_i64(order + 8 * i)))
        for i in range(count):
            store_i64(ids + 8 * i, load_i64(order + 8 * (count - 1 - i)))
    store_f64(args + AT.sum, total)
    return count
