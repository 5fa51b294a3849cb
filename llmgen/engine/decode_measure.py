"""How generated tokens read the cache fastest, measured beside any answer (which else is found out in its steps)."""

from __future__ import annotations

from typing import Any, Protocol

from llmgen.engine.interfaces import ModelLike
from llmgen.model.decode_config import DecodePlan, Measured
from llmgen.model.runs import Part

_MOST_STEPS = 100
"""On a busy machine steps with fewer threads do not count, and there may be no others."""


class AdaptingModel(ModelLike, Protocol):
    """A model that finds out on the way how it reads the cache."""

    readings: Any
    """What the backend has found out by now (backends/cpu/readings.py)."""


def lengths_of(plan: DecodePlan, n_ctx: int) -> list[int]:
    """A context length of each bucket that n_ctx tokens reach: its border; beyond the last border, four times that."""
    lengths = [*plan.borders, 4 * plan.borders[-1]] if plan.borders else [n_ctx]
    below = [0, *plan.borders]
    return [min(length, n_ctx) for length, border in zip(lengths, below, strict=True) if border < n_ctx]


def measure_readings(model: AdaptingModel, length: int) -> Measured | None:
    """The reading of the bucket of a context length, measured where it is not known; None where that could not be done.

    The context is stood in for, as in ``kv_measure.step_seconds``.
    """
    readings = model.readings
    bucket = readings.plan.bucket(length)
    seq = model.new_sequence()
    try:
        seq.stand_in(max(0, length - _MOST_STEPS))
        for _ in range(min(_MOST_STEPS, length - seq.length)):
            if bucket in readings.measured:
                break
            model.forward([Part(seq, [0])], "generated", lambda rows: None)
    finally:
        seq.close()
    return readings.measured.get(bucket)
