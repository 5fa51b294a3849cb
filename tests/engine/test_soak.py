"""Many generations: memory and threads stay where they are, and come back when an LLM is closed."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import models
from archs import build_arch
from llmgen import LLM, LLMGenError, SamplingParams
from program import HANGS_S

MB = 1 << 20
ROUNDS = 6
SHORT = SamplingParams(temp=0.9, seed=3, max_tokens=6, ignore_eos=True)
ARCHS = ("llama-dense", "gemma3-dense")

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def tiny(name: str = "llama-dense", n_threads: int = 2) -> LLM:
    return LLM(build_arch(name, "q8_0"), n_ctx=128, n_threads=n_threads)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def counts() -> tuple[int, int]:
    """Threads and open files, without those that an earlier test has left to the garbage collector."""
    gc.collect()
    return native_threads(), open_files()


def settles(count: Callable[[], int], limit: int) -> bool:
    """Whether a count comes down to the limit; a thread that ended is listed a moment longer."""
    deadline = time.monotonic() + HANGS_S
    while count() > limit and time.monotonic() < deadline:
        time.sleep(0.01)
    return count() <= limit


def growth(work: Callable[[int], object], times: int, limit: int) -> int:
    """Bytes that resident memory still grows by when the work is repeated: the least of some rounds.

    A leak grows in every round; an arena or a huge page that the system adds once does not.
    """
    least = sys.maxsize
    for _ in range(ROUNDS):
        before = resident_bytes()
        for i in range(times):
            work(i)
        least = min(least, resident_bytes() - before)
        if least < limit:
            break
    return least


def prompts(n: int) -> list[list[int]]:
    """n prompts of 1 to 60 tokens, no two alike."""
    rng = np.random.default_rng(2)
    return [rng.integers(0, 128, size).tolist() for size in rng.integers(1, 61, n)]


# --- one LLM, many generations ---


@linux
@pytest.mark.parametrize("name", ARCHS)
def test_memory_and_threads_stay_flat_over_many_generations(name: str) -> None:
    many = prompts(500)
    with tiny(name) as llm:
        llm.generate(many[0], SHORT)
        threads, files = counts()
        assert growth(lambda i: llm.generate(many[i], SHORT), 500, 2 * MB) < 2 * MB
        assert settles(native_threads, threads)
        assert open_files() <= files


@linux
def test_every_way_to_generate_stays_flat() -> None:
    many = prompts(130)

    def work(i: int) -> None:
        llm.generate(many[i : i + 3], SHORT)  # several at once
        llm.samples(many[i], 2, SHORT)
        llm.logits(many[i])
        stream = llm.stream(many[i], SHORT)
        next(stream)
        stream.close()  # left early
        with llm.session() as session:
            session.generate(many[i], SHORT)
            session.fork().close()
        with pytest.raises(LLMGenError):
            llm.generate([1] * 129, SHORT)

    with tiny() as llm:
        work(0)
        threads, files = counts()
        assert growth(work, 100, 2 * MB) < 2 * MB
        assert settles(native_threads, threads)
        assert open_files() <= files


@linux
def test_a_real_model_stays_flat() -> None:
    with LLM(models.smollm2(), n_ctx=256) as llm:
        many = [f"{i} and then" for i in range(40)]
        few = SHORT.with_(max_tokens=4)
        assert growth(lambda i: llm.generate(many[i], few), 25, 4 * MB) < 4 * MB


# --- opened and closed ---


@linux
def test_opening_and_closing_gives_everything_back() -> None:
    def work(i: int) -> None:
        with tiny(ARCHS[i % 2]) as llm:
            llm.generate([1, 2, 3], SHORT)

    work(0)
    threads, files = counts()
    assert growth(work, 40, 4 * MB) < 4 * MB
    assert settles(native_threads, threads)
    assert open_files() <= files


@linux
def test_dropping_gives_everything_back() -> None:
    def work(i: int) -> None:
        llm = tiny()
        llm.generate([1, 2, 3], SHORT)

    work(0)
    threads, files = counts()
    assert growth(work, 25, 4 * MB) < 4 * MB
    assert settles(native_threads, threads)
    assert open_files() <= files


@linux
def test_a_closed_real_model_gives_its_memory_back() -> None:
    def work(_: int) -> None:
        with LLM(models.smollm2(), n_ctx=512, n_threads=2) as llm:
            llm.generate("Once upon a time", SHORT)

    work(0)  # imports, kernels and the allocator's own reserves stay
    assert growth(work, 2, 16 * MB) < 16 * MB  # of 100 MB that are mapped and used


# --- two at once ---


def test_two_models_interleaved_are_as_each_alone() -> None:
    first, second = prompts(2)
    alone = []
    for name, prompt in zip(ARCHS, (first, second), strict=True):
        with tiny(name) as llm:
            alone.append(llm.generate(prompt, SHORT).token_ids)
    with tiny(ARCHS[0]) as a, tiny(ARCHS[1]) as b:
        for _ in range(3):
            streams = (a.stream(first, SHORT), b.stream(second, SHORT))
            steps = list(zip(*streams, strict=True))
            for ids, column in zip(alone, zip(*steps, strict=True), strict=True):
                assert tuple(event.token_id for event in column[:-1]) == ids


def test_two_models_in_two_threads_are_as_each_alone() -> None:
    many = prompts(30)
    results: dict[str, list[tuple[int, ...]]] = {}

    def work(name: str, llm: LLM) -> None:
        results[name] = [llm.generate(prompt, SHORT).token_ids for prompt in many]

    with tiny(ARCHS[0], n_threads=1) as a, tiny(ARCHS[1], n_threads=1) as b:
        workers = [threading.Thread(target=work, args=pair) for pair in zip(ARCHS, (a, b), strict=True)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=HANGS_S)
        together = dict(results)
        for name, llm in zip(ARCHS, (a, b), strict=True):
            work(name, llm)
    assert together == results


def test_closing_one_leaves_the_other_alone() -> None:
    with tiny() as kept:
        expected = kept.generate([5, 6, 7], SHORT).token_ids
        other = tiny()
        other.generate([5, 6, 7], SHORT)
        other.close()
        assert kept.generate([5, 6, 7], SHORT).token_ids == expected


# --- after the end ---


def test_a_closed_llm_says_so() -> None:
    llm = tiny()
    model, session = llm.model, llm.session()
    seq = model.new_sequence()
    session.generate([1, 2], SHORT)
    llm.close()
    llm.close()
    assert llm.closed
    calls: list[Callable[[], object]] = [
        lambda: llm.generate([1], SHORT),
        lambda: llm.generate([[1], [2]], SHORT),
        lambda: llm.samples([1], 2, SHORT),
        lambda: llm.stream([1], SHORT),
        lambda: llm.logits([1]),
        lambda: llm.session(),
        lambda: llm.model,
        lambda: llm.metadata,
        lambda: session.generate([1, 2, 3], SHORT),
        lambda: model.new_sequence(),
        lambda: model.prefill(seq, [1]),
        lambda: model.decode([seq], [1]),
    ]
    for call in calls:
        with pytest.raises(LLMGenError, match="closed"):
            call()


def test_a_closed_sequence_says_so() -> None:
    with tiny() as llm:
        seq = llm.model.new_sequence()
        llm.model.prefill(seq, [1, 2])
        seq.close()
        seq.close()
        with pytest.raises(LLMGenError, match="closed"):
            llm.model.prefill(seq, [1])
        with pytest.raises(LLMGenError, match="closed"):
            llm.model.decode([seq], [1])
