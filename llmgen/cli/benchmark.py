"""The measurements behind ``llmgen bench``; what is printed is decided there.

Every figure is wall-clock time around public calls of :class:`llmgen.model.Model`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmgen.gguf import GGUFFile
from llmgen.model import Model, Sequence
from llmgen.model.memory import available_bytes

_READ_BYTES = 256 << 20  # per thread, as far as a quarter of the free memory goes: well beyond any cache
_WARM_UP_TOKENS = 64
_SAMPLED_STEPS = 20
_CACHE_TOKENS = 256
_CACHED_STEPS = 20


@dataclass(frozen=True)
class Plan:
    """What to measure: sizes in tokens; ``kv_cache`` False recomputes the whole prefix for each token."""

    n_prompt: int
    n_generate: int
    depths: tuple[int, ...]
    repetitions: int
    kv_cache: bool = True

    @property
    def n_ctx(self) -> int:
        """The context that the largest of all measurements needs."""
        tests = max(self.depths) + max(self.n_prompt, self.n_generate)
        return max(
            tests, self.n_prompt + _SAMPLED_STEPS + 1, _CACHE_TOKENS + _CACHED_STEPS, _WARM_UP_TOKENS + 1
        )


@dataclass(frozen=True)
class Row:
    """One test: its repetitions in tokens per second.

    ``weight_bytes`` is what one generated token reads of the weights; 0 for
    prompt processing, where many tokens share one reading.
    """

    test: str
    threads: int
    depth: int
    tokens: int
    rates: tuple[float, ...]
    weight_bytes: int = 0

    @property
    def mean(self) -> float:
        """Tokens per second, the mean of the repetitions."""
        return statistics.fmean(self.rates)

    @property
    def spread(self) -> float:
        """Sample standard deviation of the repetitions; 0 for one."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0

    @property
    def weight_rate(self) -> float | None:
        """Bytes of weights read per second."""
        return self.weight_bytes * self.mean if self.weight_bytes else None


@dataclass
class Report:
    """Everything that was measured with one number of threads."""

    threads: int
    load_s: float
    read_rate: float
    kv_bytes_per_token: int
    rows: list[Row] = field(default_factory=list)
    extras: dict[str, float] = field(default_factory=dict)


def read_bandwidth(threads: int, repetitions: int = 3) -> float:
    """Bytes per second that ``threads`` threads read from memory: the best sum over a large array."""
    free = available_bytes()
    n_bytes = threads * _READ_BYTES if free is None else min(threads * _READ_BYTES, free // 4)
    numbers = np.empty(max(n_bytes // 8, threads), dtype=np.uint64)
    for part in np.array_split(numbers, 64):  # the system may take its time, and Ctrl-C comes in between
        part.fill(1)
    parts = np.array_split(numbers, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repetitions):
            started = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, numbers.nbytes / (time.perf_counter() - started))
    return best


def weight_bytes_per_token(file: GGUFFile) -> int:
    """Bytes of weights that one generated token reads: all, but of an untied embedding only a row."""
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and "output.weight" in file.tensors:
        total += embedding.row_bytes - embedding.nbytes
    return total


def token_source(vocab_size: int) -> Callable[[int], list[int]]:
    """A function that returns n random token ids, the same ones in every run."""
    generator = random.Random(0)
    return lambda n: [generator.randrange(vocab_size) for _ in range(n)]


class Bench:
    """The tests over one loaded model."""

    def __init__(self, model: Model, file: GGUFFile, plan: Plan, tick: Callable[[str], None]) -> None:
        """``tick`` is called with the name of each test when it begins."""
        self.model = model
        self.plan = plan
        self.tick = tick
        self.tokens = token_source(model.config.vocab_size)
        self.weight_bytes = weight_bytes_per_token(file)

    def rows(self) -> Iterable[Row]:
        """Measure prompt processing and generation at every depth, one row after the other."""
        with closing(self.model.new_sequence()) as seq:
            self._warm_up(seq)
            for depth in self.plan.depths:
                yield from self._at_depth(seq, depth)

    def _warm_up(self, seq: Sequence) -> None:
        """Use both paths once, so that no test pays for the first touch of weights and threads."""
        self.model.prefill(seq, self.tokens(_WARM_UP_TOKENS), logits="last")
        self.model.decode([seq], self.tokens(1))

    def _at_depth(self, seq: Sequence, depth: int) -> Iterable[Row]:
        plan = self.plan
        prefix = self.tokens(depth)
        if plan.n_prompt:
            self.tick(f"prompt of {plan.n_prompt} at {depth}")
            rates = [self._prompt(seq, prefix) for _ in range(plan.repetitions)]
            yield Row(f"pp{plan.n_prompt}", self.model.n_threads, depth, plan.n_prompt, tuple(rates))
        if plan.n_generate:
            step = self._step if plan.kv_cache else self._step_without_cache
            self.tick(f"generation of {plan.n_generate} at {depth}")
            rates = [self._generate(seq, prefix, step) for _ in range(plan.repetitions)]
            name = f"tg{plan.n_generate}" + ("" if plan.kv_cache else " no cache")
            read = self.weight_bytes if plan.kv_cache else 0
            yield Row(name, self.model.n_threads, depth, plan.n_generate, tuple(rates), read)

    def _fill(self, seq: Sequence, prefix: list[int]) -> None:
        """Bring the cache to exactly the prefix, by cutting it back where that is possible."""
        if 0 < len(prefix) <= seq.length and len(prefix) >= seq.min_truncate:
            seq.truncate(len(prefix))
            return
        seq.clear()
        if prefix:
            self.model.prefill(seq, prefix, logits="none")

    def _prompt(self, seq: Sequence, prefix: list[int]) -> float:
        """Tokens per second of one prompt after the prefix, its last logits included."""
        self._fill(seq, prefix)
        tokens = self.tokens(self.plan.n_prompt)
        started = time.perf_counter()
        self.model.prefill(seq, tokens, logits="last")
        return len(tokens) / (time.perf_counter() - started)

    def _generate(
        self, seq: Sequence, prefix: list[int], step: Callable[[Sequence, list[int]], None]
    ) -> float:
        """Tokens per second of generation after the prefix; the tokens are given, nothing is sampled."""
        self._fill(seq, prefix)
        so_far = list(prefix)
        tokens = self.tokens(self.plan.n_generate)
        started = time.perf_counter()
        for token in tokens:
            so_far.append(token)
            step(seq, so_far)
        return len(tokens) / (time.perf_counter() - started)

    def _step(self, seq: Sequence, so_far: list[int]) -> None:
        """One generated token with the cache."""
        self.model.decode([seq], so_far[-1:])

    def _step_without_cache(self, seq: Sequence, so_far: list[int]) -> None:
        """One generated token with nothing remembered: the whole prefix through the prompt path."""
        seq.clear()
        self.model.prefill(seq, so_far, logits="last")

    def cache_speedup(self) -> dict[str, float]:
        """Compare a step with the cache and one that recomputes, both after 256 tokens.

        Returns the median seconds of either and their ratio.
        """
        self.tick(f"KV cache against recomputing at {_CACHE_TOKENS}")
        prefix = self.tokens(_CACHE_TOKENS)
        steps = min(5, self.plan.repetitions)
        with closing(self.model.new_sequence()) as seq:
            self.model.prefill(seq, prefix, logits="none")
            cached = _median(lambda: self._step(seq, self.tokens(1)), _CACHED_STEPS)
            recomputed = _median(lambda: self._step_without_cache(seq, prefix), steps)
        return {"cached_step_s": cached, "recomputed_step_s": recomputed, "speedup": recomputed / cached}

    def first_token_and_sampler(self) -> dict[str, float]:
        """Seconds from a prompt to its first token, and what one call of the sampler takes of a step."""
        from llmgen.generation import Sampler, SamplingParams

        self.tick("time to first token, sampler")
        sampler = Sampler(SamplingParams(seed=0), self.model.config.vocab_size)
        prompt = self.tokens(max(1, self.plan.n_prompt))
        with closing(self.model.new_sequence()) as seq:
            started = time.perf_counter()
            logits: Any = self.model.prefill(seq, prompt, logits="last")
            token = sampler.sample(logits).token_id
            first = time.perf_counter() - started
            step = sampling = 0.0
            for _ in range(_SAMPLED_STEPS):
                started = time.perf_counter()
                logits = self.model.decode([seq], [token])[0]
                decoded = time.perf_counter()
                token = sampler.sample(logits).token_id
                sampling += time.perf_counter() - decoded
                step += time.perf_counter() - started
        return {"first_token_s": first, "prompt_tokens": len(prompt), "sampler_share": sampling / step}


def _median(call: Callable[[], None], times: int) -> float:
    """Median seconds of a call."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
