"""The measurements of ``llmgen bench``.

Every figure is wall-clock time around public calls of :class:`llmgen.backends.cpu.model.Model`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from llmgen.backends.cpu.memory import available_bytes
from llmgen.backends.cpu.model import Model, Sequence
from llmgen.cli.bench.guessing import N_CTX, Guessed
from llmgen.cli.bench.guessing import measure as measure_guessing
from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.gguf import GGUFFile, TensorInfo
from llmgen.model.runs import Part
from llmgen.sampling.logits import check_finite

_READ_BYTES = 256 << 20  # per thread, as far as a quarter of the free memory goes: well beyond any cache
_WARM_UP_TOKENS = 64
_SAMPLED_STEPS = 20
_CACHE_TOKENS = 256
_CACHED_STEPS = 20
_PROFILED_STEPS = 5
_STORING, _READING = ("cache:",), ("attention:", "latent:", "indexer:")
"""Which kernels write keys and values, and which read them."""


@dataclass(frozen=True)
class Test:
    """One test: a prompt of ``n_prompt`` tokens, then ``n_generate`` generated ones, after ``depth`` others."""

    n_prompt: int
    n_generate: int
    depth: int = 0

    @property
    def tokens(self) -> int:
        """The tokens that are timed."""
        return self.n_prompt + self.n_generate

    @property
    def name(self) -> str:
        """``pp512``, ``tg128`` or ``pp512+tg128``: the names that llama-bench uses."""
        parts = [f"pp{self.n_prompt}"] if self.n_prompt else []
        return "+".join(parts + ([f"tg{self.n_generate}"] if self.n_generate else []))


@dataclass(frozen=True)
class Plan:
    """What to measure.

    ``kv_cache`` False recomputes the whole prefix for each generated token; ``details``
    adds what :meth:`Bench.details` measures, ``guessing`` what guesses gain with these options.
    """

    tests: tuple[Test, ...]
    repetitions: int
    kv_cache: bool = True
    details: bool = False
    guessing: SpeculativeConfig | None = None

    @property
    def generates(self) -> bool:
        """Whether some test only generates, with the cache, so that its memory bandwidth can be computed."""
        return any(self.weights_count(test) for test in self.tests)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt, at least one."""
        return max(1, *(test.n_prompt for test in self.tests))

    @property
    def n_ctx(self) -> int:
        """The context that the largest measurement needs."""
        needs = [_WARM_UP_TOKENS + 1, *(test.depth + test.tokens for test in self.tests)]
        if self.details:
            needs += [self.longest_prompt + _SAMPLED_STEPS + 1, _CACHE_TOKENS + _CACHED_STEPS]
        if self.guessing:
            needs.append(N_CTX)
        return max(needs)

    def weights_count(self, test: Test) -> bool:
        """Whether a token of this test reads all weights once."""
        return self.kv_cache and not test.n_prompt


@dataclass(frozen=True)
class CacheShares:
    """The shares of a generated token's time on one thread that storing keys and values, and attending, take."""

    store: float
    read: float

    @classmethod
    def of(cls, seconds: Mapping[str, float]) -> CacheShares:
        """The shares, given the seconds of each kernel."""
        total = sum(seconds.values())
        store, read = (
            sum(taken for kernel, taken in seconds.items() if kernel.startswith(names))
            for names in (_STORING, _READING)
        )
        return cls(store / total, read / total)


@dataclass(frozen=True)
class Row:
    """A test that was run: its repetitions in tokens per second.

    ``weight_bytes`` is how much of the weights one token reads, 0 if unknown: the tokens of
    a prompt share one pass over them.  ``cache``: what the KV cache takes of a generated token.
    """

    test: Test
    rates: tuple[float, ...]
    weight_bytes: int = 0
    cache: CacheShares | None = None

    @property
    def mean(self) -> float:
        """Tokens per second, the mean of the repetitions."""
        return statistics.fmean(self.rates)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of the repetitions; None if there is only one."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else None

    @property
    def weight_rate(self) -> float | None:
        """Bytes of weights read per second."""
        return self.weight_bytes * self.mean if self.weight_bytes else None


@dataclass
class Run:
    """Everything that was measured with one model and one number of threads.

    ``read_rate`` is the machine's, in bytes per second; None if no test is compared with it.
    ``rope_scaling`` is how positions are scaled, such as "yarn:4" or "none", ``decode_plan`` how generated tokens
    attend, and ``local_window`` what JSON says where they do not see all keys.
    """

    model: str
    size: int
    parameters: int
    quantization: str
    threads: int
    kv_type: str
    kv_bytes_per_token: int
    kv_cache: bool
    rope_scaling: str
    decode_plan: str
    load_s: float
    read_rate: float | None = None
    local_window: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    details: dict[str, float] = field(default_factory=dict)
    guessed: list[Guessed] = field(default_factory=list)


def read_bandwidth(threads: int, repetitions: int = 3) -> float:
    """Bytes per second that ``threads`` threads read from memory: the fastest sum over a large array."""
    free = available_bytes()
    n_bytes = threads * _READ_BYTES if free is None else min(threads * _READ_BYTES, free // 4)
    numbers = np.empty(max(n_bytes // 8, threads), dtype=np.uint64)
    for part in np.array_split(
        numbers, 64
    ):  # in parts, so that Ctrl-C is noticed while the system maps the memory
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
    """Bytes of weights that one generated token reads: all, but only one row of an untied embedding, and
    of the experts those that a token takes."""
    total = sum(int(tensor.nbytes * share_read(file, tensor)) for tensor in file.tensors.values())
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None and "output.weight" in file.tensors:
        total += embedding.row_bytes - embedding.nbytes
    return total


def share_read(file: GGUFFile, tensor: TensorInfo) -> Fraction:
    """The share of a tensor that a token reads if all rows of a matrix are needed: of experts, those that it takes."""
    count, used = (file.metadata.get(f"{file.architecture}.expert_{key}count") for key in ("", "used_"))
    if "exps." in tensor.name and isinstance(count, int) and isinstance(used, int) and 0 < used <= count:
        return Fraction(used, count)
    return Fraction(1)


def token_source(vocab_size: int) -> Callable[[int], list[int]]:
    """A function that returns n random token ids, the same in every run."""
    generator = random.Random(0)
    return lambda n: [generator.randrange(vocab_size) for _ in range(n)]


class Bench:
    """The tests over one loaded model.  A context manager: it holds a KV cache."""

    def __init__(self, model: Model, file: GGUFFile, plan: Plan) -> None:
        self.model = model
        self.plan = plan
        self.tokens = token_source(model.config.vocab_size)
        self.weight_bytes = weight_bytes_per_token(file)
        self._file = file
        self._seq: Sequence | None = None

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def measure(self, test: Test) -> Row:
        """Run one test as often as the plan says."""
        seq = self._sequence()
        prefix = self.tokens(test.depth)
        rates = tuple(self._once(seq, test, prefix) for _ in range(self.plan.repetitions))
        if not self.plan.weights_count(test):
            return Row(test, rates)
        return Row(test, rates, self.weight_bytes, self._cache_shares(seq, test, prefix))

    def _cache_shares(self, seq: Sequence, test: Test, prefix: list[int]) -> CacheShares:
        """Over the first few tokens that a test generates."""
        self._fill(seq, prefix)
        seconds: Counter[str] = Counter()
        for token in self.tokens(min(test.n_generate, _PROFILED_STEPS)):
            seconds.update(self.model.profile([Part(seq, [token])], "generated"))
        return CacheShares.of(seconds)

    def details(self) -> dict[str, float]:
        """The time to the first token, the sampler's share of a step, and a step without the cache."""
        self._release()  # these have caches of their own
        return {**self._first_token_and_sampler(), **self._cache_speedup()}

    def guessing(self) -> list[Guessed]:
        """Texts written with guesses and without."""
        self._release()
        assert self.plan.guessing is not None
        return measure_guessing(self.model, self._file, self.plan.guessing, self.plan.repetitions)

    def _sequence(self) -> Sequence:
        """The tests' sequence.  When it is made, both paths run once, so that no test pays for their first use."""
        if self._seq is None:
            self._seq = self.model.new_sequence()
            logits = self.model.prefill(self._seq, self.tokens(_WARM_UP_TOKENS), logits="last")
            assert logits is not None
            check_finite(logits)  # the speed of a broken model is no figure
            self.model.decode([self._seq], self.tokens(1))
        return self._seq

    def _release(self) -> None:
        if self._seq is not None:
            self._seq.close()
            self._seq = None

    def _once(self, seq: Sequence, test: Test, prefix: list[int]) -> float:
        """Tokens per second of a test after the prefix; the tokens are given, nothing is sampled.

        A prompt ends with its last token's logits, and a generated token with its own.
        """
        self._fill(seq, prefix)
        prompt, generated = self.tokens(test.n_prompt), self.tokens(test.n_generate)
        step = self._step if self.plan.kv_cache else self._step_without_cache
        so_far = [*prefix, *prompt]
        started = time.perf_counter()
        if prompt:
            self.model.prefill(seq, prompt, logits="last")
        for token in generated:
            so_far.append(token)
            step(seq, so_far)
        return test.tokens / (time.perf_counter() - started)

    def _fill(self, seq: Sequence, prefix: list[int]) -> None:
        """Make the cache hold exactly the prefix, by truncating it if possible."""
        if 0 < len(prefix) <= seq.length and seq.cut_point(len(prefix)) == len(prefix):
            seq.truncate(len(prefix))
            return
        seq.clear()
        if prefix:
            self.model.prefill(seq, prefix, logits="none")

    def _step(self, seq: Sequence, so_far: list[int]) -> None:
        """One generated token with the cache."""
        self.model.decode([seq], so_far[-1:])

    def _step_without_cache(self, seq: Sequence, so_far: list[int]) -> None:
        """One generated token without the cache: the whole prefix is computed again as a prompt."""
        seq.clear()
        self.model.prefill(seq, so_far, logits="last")

    def _cache_speedup(self) -> dict[str, float]:
        """Compare a step with the cache and one that recomputes, both after 256 tokens.

        Returns the median seconds of each and their ratio.
        """
        prefix = self.tokens(_CACHE_TOKENS)
        steps = min(5, self.plan.repetitions)
        with closing(self.model.new_sequence()) as seq:
            self.model.prefill(seq, prefix, logits="none")
            cached = _median(lambda: self._step(seq, self.tokens(1)), _CACHED_STEPS)
            recomputed = _median(lambda: self._step_without_cache(seq, prefix), steps)
        return {"cached_step_s": cached, "recomputed_step_s": recomputed, "speedup": recomputed / cached}

    def _first_token_and_sampler(self) -> dict[str, float]:
        """Seconds from a prompt to its first token, and the sampler's share of a step."""
        from llmgen.engine import Sampler, SamplingParams

        sampler = Sampler(SamplingParams(seed=0), self.model.config.vocab_size)
        prompt = self.tokens(self.plan.longest_prompt)
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
