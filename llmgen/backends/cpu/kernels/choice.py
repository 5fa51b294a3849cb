"""Natives for the sampler: a whole step in one call, whatever samplers there are in whatever order.

What they compute is what sampling/filters.py, mirostat.py, penalties.py and dry.py say;
there numpy needs dozens of calls, each of which finds its code pushed out of the caches by
the model's weights.  ``values`` is float64 memory in the order of CHOICE_FIELDS, followed by
the stages, CHOICE_STAGE numbers each: the code and its parameters.  ``places`` is int64
memory in the order of CHOICE_PLACES, addresses and lengths.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import I, native
from llmgen.backends.cpu.kernels.layout import CHOICE_FIELDS, CHOICE_ORDER, CHOICE_STAGE
from llmgen.backends.cpu.kernels.repetition import biased, dry, penalties
from llmgen.backends.cpu.kernels.selection import LN_2, LOW, SUM, TIES, border, keep, log, pop, sink
from llmgen.backends.cpu.kernels.simd import load_f32, load_f64, load_i64, store_f64, store_i64
from llmgen.backends.cpu.kernels.stages import (
    DRY,
    DYNAMIC,
    IDS,
    KEYS,
    MAXIMA,
    MIROSTAT_1,
    MIROSTAT_2,
    MU,
    ORDER,
    PEAK,
    PENALTIES,
    SPARE,
    TEMPERATURE,
    TYPICAL,
    WORK,
    XTC,
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

STAGES, GREEDY, COUNT, WHOLE, MOVED, DIVISOR = (
    8 * CHOICE_FIELDS[name] for name in ("stages", "greedy", "count", "whole", "moved", "divisor")
)
FIRST_STAGE, STAGE_BYTES = 8 * len(CHOICE_FIELDS), 8 * CHOICE_STAGE


@native(I(I, I, I, I))
def choose(x: int, n: int, values: int, places: int) -> int:
    """One sampling step: the token; -1 where the largest logit is no finite number.

    COUNT candidates are left then: all if WHOLE, else those in IDS; their logits are in WORK, if MOVED,
    else at ``x``, and are to be made less by PEAK and divided by DIVISOR.
    """
    work, ids, maxima = load_i64(places + WORK), load_i64(places + IDS), load_i64(places + MAXIMA)
    spare = load_i64(places + SPARE)
    v, m, whole = biased(x, n, places), n, True
    n_stages = int(load_f64(values + STAGES))
    divisor = np.float32(1)  # a temperature that is still to be applied
    peak, known = np.float32(0), False
    for number in range(n_stages):
        stage = values + FIRST_STAGE + STAGE_BYTES * number
        code = int(load_f64(stage))
        if code == PENALTIES or code == DRY:
            v, known = copied(v, m, work), False
            if code == PENALTIES:
                penalties(v, m, whole, n, stage, places)
            else:
                dry(v, m, whole, n, stage, places)
            continue
        if not known:
            peak, known = peak_of(v, m, places), True
            if not (peak > -np.inf and peak < np.inf):
                return -1
        if code == XTC:
            if load_f64(stage + 8) <= 0.5 and m > 1:
                weight = load_f64(stage + 8) * total_of(v, m, peak, False, places, values)
                low = np.float32(-np.inf)
                if weight > 1e-300:
                    low = peak - np.float32(log(1.0 / weight, values) if weight < 1.0 else 0.0)
                    low = low - np.float32(1e-3) * (np.float32(1) + abs(low))
                v = copied(v, m, work)
                if excluded(v, m, maxima, low, weight, peak, values) > 0:
                    m = keep(v, v, m, ids, whole, maxima, np.float32(-np.inf), m, spare, ids, work)
                    whole, known = False, False
            continue
        if code == TEMPERATURE or code == DYNAMIC:
            if code == DYNAMIC and m <= 1:
                continue
            divisor = np.float32(load_f64(stage + 8))
            if code == DYNAMIC:
                divisor = np.float32(dynamic_temperature(v, m, peak, stage, places, values))
            following = int(load_f64(stage + STAGE_BYTES)) if number + 1 < n_stages else MIROSTAT_2
            if following == MIROSTAT_1 or following == MIROSTAT_2:
                continue  # on the fly
        else:
            keys = load_i64(places + KEYS) if code == TYPICAL else v
            if cut(code, stage, v, m, keys, peak, divisor, n, places, values):
                low, ties = np.float32(load_f64(values + LOW)), int(load_f64(values + TIES))
                m = keep(keys, v, m, ids, whole, maxima, low, ties, spare, ids, work)
                v, whole, known = work, False, False
            if code != MIROSTAT_1 and code != MIROSTAT_2:
                continue
        scale(v, m, peak, divisor, work)
        v, divisor, known = work, np.float32(1), False
        if code == MIROSTAT_2 and ties != 1:  # one is the best, where none is likely enough
            bound = np.float32(log(load_f64(values + SUM), values) - load_f64(values + MU) * LN_2)
            m = likely_enough(v, m, ids, bound)
    if not known:
        peak = peak_of(v, m, places)
        if not (peak > -np.inf and peak < np.inf):
            return -1
    store_f64(values + COUNT, np.float64(m))
    store_f64(values + WHOLE, 1.0 if whole else 0.0)
    store_f64(values + MOVED, 1.0 if v == work else 0.0)
    store_f64(values + PEAK, np.float64(peak))
    store_f64(values + DIVISOR, np.float64(divisor))
    if load_f64(values + GREEDY) != 0.0:
        index = 0
        while load_f32(v + 4 * index) != peak:
            index += 1
    else:
        index = draw(v, m, peak, divisor, places, values)
    return index if whole else load_i64(ids + 8 * index)


@native(I(I, I, I, I, I))
def head(x: int, n: int, k: int, values: int, places: int) -> int:
    """The k best (at most CHOICE_ORDER) in IDS, in order, with PEAK and SUM; their number, or -1 as above."""
    peak = peak_of(x, n, places)
    if not (peak > -np.inf and peak < np.inf):
        return -1
    store_f64(values + PEAK, np.float64(peak))
    total = total_of(x, n, peak, False, places, values)
    count = min(k, n, CHOICE_ORDER)
    if count > 0:
        order, ids, keys = load_i64(places + ORDER), load_i64(places + IDS), load_i64(places + KEYS)
        spare, maxima = load_i64(places + SPARE), load_i64(places + MAXIMA)
        border(x, x, n, maxima, peak, peak, np.float64(count), False, True, spare, order, values)
        low, ties = np.float32(load_f64(values + LOW)), int(load_f64(values + TIES))
        keep(x, x, n, ids, True, maxima, low, ties, spare, ids, keys)
        for i in range(count):
            store_i64(order + 8 * i, i)
        for root in range(count // 2 - 1, -1, -1):
            sink(keys, order, root, count)
        for i in range(count):  # the ids move to where the values' memory ends
            first = pop(keys, order, count - i)
            store_i64(order + 8 * (count - 1 - i), first)
        for i in range(count):
            store_i64(order + 8 * i, load_i64(ids + 8 * load_i64(order + 8 * i)))
        for i in range(count):
            store_i64(ids + 8 * i, load_i64(order + 8 * (count - 1 - i)))
    store_f64(values + SUM, total)
    return count
