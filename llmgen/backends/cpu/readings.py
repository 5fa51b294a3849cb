"""Which way of reading the cache is fastest for generated tokens, found out on the way.

No way changes a bit, so an answer's own steps are the measurement: in the first steps at a context length of a
bucket, the ways take turns, and then the fastest is kept.  That costs no run beside the answer, leaves
no trace in it, and measures what counts, with the weights, the memory and the threads of this moment.  Another
program that takes the processor for a while slows the ways down in turn, too; so a way replaces the one in use only
if its best step is clearly faster, and most of its steps are.  Where half of a way's steps are not about as fast as
its best one, the machine is too busy to tell: all begin anew, and after a few attempts nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from llmgen.model.decode_config import STREAMS, DecodePlan, Measured, Reading

ROUNDS = 6
"""Steps that are timed with each way."""
_WARMING = 2
"""Steps before them that do not count, because they fill the caches."""
_GAIN = 0.98
"""A way replaces the one in use if its best step takes less than this share of that one's best step."""
_SPREAD = 1.1
"""The machine is quiet enough if half of a way's steps take less than this many times its best step."""
_ATTEMPTS = 3


@dataclass
class _Trial:
    """A bucket whose ways are being timed."""

    attempt: int = 1
    warmed: int = 0
    seconds: dict[int, list[float]] = field(default_factory=lambda: {streams: [] for streams in STREAMS})

    @property
    def next(self) -> int:
        """The streams whose turn it is."""
        return min(STREAMS, key=lambda streams: len(self.seconds[streams]))

    def add(self, streams: int, seconds: float) -> None:
        if self.warmed < _WARMING:
            self.warmed += 1
        else:
            self.seconds[streams].append(seconds)

    @property
    def done(self) -> bool:
        return all(len(taken) == ROUNDS for taken in self.seconds.values())

    @property
    def steady(self) -> bool:
        """Whether the times say something."""
        return all(sorted(taken)[ROUNDS // 2 - 1] <= _SPREAD * min(taken) for taken in self.seconds.values())

    def best(self, used: int) -> int:
        """The streams to use, where those in use are ``used``."""

        def better(streams: int) -> bool:
            before, here = self.seconds[used], self.seconds[streams]
            faster = sum(mine < its for mine, its in zip(here, before, strict=True))
            return min(here) < _GAIN * min(before) and 3 * faster >= 2 * ROUNDS

        return min(filter(better, STREAMS), key=lambda s: min(self.seconds[s]), default=used)


class Readings:
    """The way of reading for each context length.

    ``n_threads``: of the model; steps with fewer say nothing about it.  ``matter``: whether the model has attention
    that reads the cache so.
    """

    def __init__(self, plan: DecodePlan, n_threads: int, matter: bool = True) -> None:
        self.plan, self._n_threads, self.matter = plan, n_threads, matter
        self.adapts = plan.adapts and matter
        self._readings = list(plan.readings)
        self._trials = [_Trial() if self.adapts else None for _ in plan.readings]
        self.measured: dict[int, Measured] = {}
        """Results by the number of the bucket, those that were taken over too."""
        self.news = False
        """Whether something has been measured here since ``measured`` was last kept."""
        self._with_all_threads = True  # the last step

    def take_over(self, measured: dict[int, Measured]) -> None:
        """Use results from elsewhere instead of measuring."""
        for bucket, result in measured.items():
            self._use(bucket, result)

    def _use(self, bucket: int, result: Measured) -> None:
        self._readings[bucket], self._trials[bucket] = result.reading, None
        self.measured[bucket] = result

    def at(self, length: int) -> tuple[Reading, bool]:
        """How a context of that length is read as far as is known, and whether that was measured."""
        bucket = self.plan.bucket(length)
        return self._readings[bucket], bucket in self.measured

    def choose(self, length: int, n_tokens: int) -> Reading:
        """For a run of ``n_tokens`` tokens, the longest of whose sequences has ``length`` then."""
        bucket = self.plan.bucket(length)
        reading, trial = self._readings[bucket], self._trials[bucket]
        if trial is None or n_tokens != 1 or not self._with_all_threads:
            return reading
        return replace(reading, streams=trial.next)

    def report(self, reading: Reading, length: int, n_tokens: int, n_threads: int, seconds: float) -> None:
        """What a run with that reading took."""
        self._with_all_threads = n_threads == self._n_threads
        bucket = self.plan.bucket(length)
        trial = self._trials[bucket]
        if trial is None or n_tokens != 1 or not self._with_all_threads or reading.streams != trial.next:
            return
        trial.add(reading.streams, seconds)
        if trial.done:
            self._decide(bucket, trial)

    def _decide(self, bucket: int, trial: _Trial) -> None:
        if not trial.steady:
            self._trials[bucket] = _Trial(trial.attempt + 1) if trial.attempt < _ATTEMPTS else None
            return
        used = self._readings[bucket]
        best = replace(used, streams=trial.best(used.streams))
        self._use(bucket, Measured(best, {s: min(taken) for s, taken in trial.seconds.items()}))
        self.news = True
