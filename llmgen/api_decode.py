"""``decode_plan="auto"``: what was measured of reading the cache is taken from the plan file, and kept there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgen.backends.cpu.machine import machine
from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.model import Model
from llmgen.backends.cpu.runtime.library import Progress
from llmgen.engine.decode_measure import lengths_of, measure_readings
from llmgen.engine.decode_plan_file import decode_key, keep_readings, kept_readings
from llmgen.engine.kv_plan import Plan
from llmgen.engine.kv_plan_file import default_file, warn_not_kept
from llmgen.errors import LLMGenError
from llmgen.gguf import GGUFFile
from llmgen.model.decode_config import DecodeConfig, Measured
from llmgen.model.kv_config import KVAutoConfig


class KeptReadings:
    """The entry of one model in the plan file."""

    def __init__(self, model: Model, path: Path, interval: float) -> None:
        self._model, self._path, self._interval = model, path, interval
        plan = model.decode_plan
        self._n_buckets = len(plan.readings)
        where = machine(model.kernel_level, model.n_threads)
        self._key = decode_key(model.fingerprint, where, model.kv_type, plan.borders)

    @classmethod
    def of(cls, model: Model, kv_type: object = None) -> KeptReadings | None:
        """What is kept of a model; None where nothing is measured.  kv_type: as the model was opened."""
        if not model.readings.adapts:
            return None
        config = kv_type if isinstance(kv_type, KVAutoConfig) else KVAutoConfig()
        path = config.plan_path or default_file()
        if str(path).startswith("~"):  # no home is known: this would be a folder of that name right here
            return None
        return cls(model, path, config.probe_interval)

    def load(self) -> None:
        """Use what was measured before, as long as it holds."""
        found = kept_readings(self._path, self._key, self._n_buckets, self._interval)
        self._model.readings.take_over(found)

    def save(self) -> None:
        """Keep what has been measured since, if anything has, beside what is known of other buckets.

        Raises LLMGenError if the file cannot be written.
        """
        readings = self._model.readings
        if readings.news:
            readings.news = False
            keep_readings(self._path, self._key, readings.measured, self._n_buckets, self._interval)


def settle_readings(
    model: Model, lengths: Iterable[int], kv_type: object = None, again: bool = False
) -> None:
    """Have a model read contexts of these lengths as fast as it can: as was measured and kept, else measured now.

    A length whose cache would take too much of the free memory is left to the model's own steps.  If the
    plan file cannot be written, that is a warning.  kv_type: as the model was opened; again: measure all.
    """
    kept = KeptReadings.of(model, kv_type)
    if kept is None:
        return
    if not again:
        kept.load()
    free = available_bytes()
    for length in lengths:
        if free is None or model.layout.bytes_for(length) < free // 4:
            measure_readings(model, length)
    try:
        kept.save()
    except LLMGenError as error:
        warn_not_kept(error)


@dataclass(frozen=True)
class PlannedReading:
    """How contexts of ``above`` + 1 to ``up_to`` tokens (None: any more) are read; None where it was not measured."""

    above: int
    up_to: int | None
    measured: Measured | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = (
            {} if self.measured is None else {**vars(self.measured.reading), "seconds": self.measured.seconds}
        )
        return {"above": self.above, "up_to": self.up_to, "measured": self.measured is not None, **found}


def planned_readings(
    file: GGUFFile,
    plan: Plan,
    config: KVAutoConfig,
    decode: DecodeConfig,
    n_threads: int | None,
    again: bool = False,
    progress: Progress | None = None,
    rope_scaling: str | None = None,
) -> list[PlannedReading]:
    """How generated tokens read the cache that was chosen: as kept, or measured and then kept; nothing without a cache.

    Buckets that the context does not reach, or whose cache would take too much of the free memory, are not measured.
    """
    if not plan.candidates:
        return []
    model = Model.load(
        *(file, plan.n_ctx, n_threads, plan.chosen, progress), rope_scaling=rope_scaling, decode_plan=decode
    )
    with closing(model):
        settle_readings(model, lengths_of(model.decode_plan, model.n_ctx), config, again)
        borders = model.decode_plan.borders
        ranges = zip((0, *borders), (*borders, None), strict=True)
        return [PlannedReading(*ends, model.readings.measured.get(i)) for i, ends in enumerate(ranges)]
