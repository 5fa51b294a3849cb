"""A sampling step in one compiled call chooses what plain numpy chooses, step by step."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from llmgen.backends.cpu import sampling as kernels
from llmgen.backends.cpu.kernels.sampling_arguments import Temperature
from llmgen.engine import Sampler, SamplingParams
from llmgen.errors import LLMGenError
from llmgen.sampling.checks import SAMPLER_NAMES
from naive.sampling.candidates import Candidates, best, log_total
from naive.sampling.sampler import NaiveSampler

OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
SETTINGS = {
    "default": {},
    "greedy": {"temp": 0.0},
    "temperature": OFF,
    "hot": {**OFF, "temp": 3.0},
    "cold": {**OFF, "temp": 1e-7},
    "top_k 1": {"top_k": 1},
    "top_k 700": {"top_k": 700, "top_p": 1.0, "min_p": 0.0},
    "no top_k": {"top_k": 0},
    "top_p": {**OFF, "top_p": 0.6},
    "top_p 0": {**OFF, "top_p": 0.0},
    "top_p almost 1": {**OFF, "top_p": 0.99999},
    "min_p": {**OFF, "min_p": 0.01},
    "min_p 1": {**OFF, "min_p": 1.0},
    "typical": {**OFF, "typical_p": 0.5},
    "typical and all": {"typical_p": 0.9},
    "typical and top_p": {"top_k": 0, "typical_p": 0.9},
    "typical 0": {**OFF, "typical_p": 0.0},
    "mirostat": {"mirostat": 2, "temp": 1.2},
    "mirostat low": {"mirostat": 2, "mirostat_tau": 0.01, "mirostat_eta": 1.0},
    "bias and penalties": {"repeat_penalty": 1.3, "logit_bias": {3: 5.0, 9: -np.inf}, "ignore_eos": True},
    "no temperature": {"samplers": ("top_k", "min_p")},
    "top_k beyond": {**OFF, "top_k": 10**6},
    "most of it": {**OFF, "top_k": 4000, "typical_p": 0.99},
    "sigma": {**OFF, "top_n_sigma": 1.0},
    "wide sigma": {"top_n_sigma": 4.0, "top_k": 0},
    "xtc": {**OFF, "xtc_probability": 1.0},
    "xtc now and then": {"xtc_probability": 0.5, "xtc_threshold": 0.01, "min_p": 0.001},
    "xtc and after": {"xtc_probability": 1.0, "samplers": ("xtc", "top_k", "typ_p", "temperature", "top_p")},
    "dynamic": {**OFF, "dynatemp_range": 0.5},
    "dynamic 2": {"dynatemp_range": 2.0, "dynatemp_exponent": 0.5, "top_k": 0},
    "mirostat 1": {"mirostat": 1, "temp": 0.9},
    "mirostat 1 high": {"mirostat": 1, "mirostat_tau": 9.0},
    "temperature first": {"samplers": ("temperature", "top_p", "min_p"), "temp": 1.5},
    "upside down": {"samplers": ("temperature", "min_p", "top_p", "typ_p", "top_k"), "typical_p": 0.8},
    "penalties last": {"samplers": ("top_k", "temperature", "penalties"), "frequency_penalty": 0.5},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "dry last": {"dry_multiplier": 0.8, "dry_base": 1.0, "samplers": ("min_p", "dry")},
    "masks": {"min_tokens": 3, "banned_tokens": (7, 8, 9), "stop_token_ids": (4,)},
    "greedy and all": {"temp": 0.0, "dry_multiplier": 5.0, "presence_penalty": 2.0, "ignore_eos": True},
}


def rows(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    plain = (rng.standard_normal(n) * 4).astype(np.float32)
    masked = plain.copy()
    masked[rng.random(n) < 0.5] = -np.inf
    masked[n // 2] = 1
    ties = np.round(plain).astype(np.float32)
    sharp = plain.copy()
    sharp[n - 1] = 60
    flat = np.full(n, -2.5, dtype=np.float32)
    return [plain, masked, ties, sharp, flat]


@pytest.mark.parametrize("n", [1, 2, 3, 17, 300, 4096, 4097, 5120, 9000])
@pytest.mark.parametrize("name", SETTINGS)
def test_compiled_and_naive_choose_the_same(name: str, n: int) -> None:
    options = SETTINGS[name]
    if n < 20:  # all of so few would be masked
        options = {key: value for key, value in options.items() if "bias" not in key and "banned" not in key}
    params = SamplingParams(seed=n, **options)
    prompt = [token % n for token in (5, 6, 7, 5, 6, 8, 5, 6)]
    ends = [1] if n > 2 else []
    compiled, naive = (kind(params, n, prompt_ids=prompt, eog_ids=ends) for kind in (Sampler, NaiveSampler))
    for row in rows(n):
        for _ in range(8):
            before = row.copy()
            token = compiled.sample(row).token_id
            assert token == naive.sample(row).token_id
            assert row[token] > -np.inf
            assert np.array_equal(row, before)
            assert compiled.mu == pytest.approx(naive.mu, abs=1e-5)
            naive.mu = compiled.mu
    assert not kernels._room.arrays["marks"].any()


def test_any_order_of_any_samplers() -> None:
    """Also log-probabilities after all of them.  Whole sets at the very border may differ by rounding, so few do."""
    draw = random.Random(7)
    differ = 0
    for _ in range(120):
        n = draw.choice([12, 700, 4097, 6000])
        names = draw.sample(SAMPLER_NAMES, draw.randrange(1, 10))
        params = SamplingParams(
            seed=draw.randrange(1000),
            samplers=tuple(names),
            temp=draw.choice([0.1, 0.8, 2.0]),
            dynatemp_range=draw.choice([0.0, 0.5]),
            top_k=draw.choice([0, 5, 60, 3000]),
            top_p=draw.choice([1.0, 0.3, 0.9]),
            min_p=draw.choice([0.0, 0.05]),
            typical_p=draw.choice([1.0, 0.5]),
            top_n_sigma=draw.choice([-1.0, 2.0]),
            xtc_probability=draw.choice([0.0, 0.7]),
            xtc_threshold=draw.choice([0.1, 0.002]),
            repeat_penalty=draw.choice([1.0, 1.3]),
            dry_multiplier=draw.choice([0.0, 0.8]),
            logprobs=3,
            logprobs_mode="processed",
        )
        prompt = [draw.choice([5, 6, 7]) for _ in range(40)]
        compiled, naive = (kind(params, n, prompt_ids=prompt) for kind in (Sampler, NaiveSampler))
        for row in rows(n):
            found, expected = compiled.sample(row), naive.sample(row)
            if found.token_id != expected.token_id:
                differ += 1
                break
            assert found.score is not None
            assert expected.score is not None
            top, expected_top = found.score.top, expected.score.top
            assert [t.token_id for t in top] == [t.token_id for t in expected_top]
            assert [t.logprob for t in top] == pytest.approx([t.logprob for t in expected_top], abs=1e-4)
    assert differ <= 1


def test_one_room_serves_many_samplers_and_threads() -> None:
    """The kernels' memory is each thread's own, and nothing in it outlives a step."""
    row = rows(5120)[0]
    params = SamplingParams(seed=3, repeat_penalty=1.2, dry_multiplier=0.5, top_k=0)

    def run(results: list[list[int]]) -> None:
        samplers = [Sampler(params, 5120, prompt_ids=[1, 2, 1, 2]) for _ in range(3)]
        results.append([sampler.sample(row).token_id for _ in range(20) for sampler in samplers])

    alone: list[list[int]] = []
    run(alone)
    many: list[list[int]] = []
    threads = [threading.Thread(target=run, args=(many,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert many == alone * 4


def test_logits_that_are_no_numbers_have_the_same_results() -> None:
    row = rows(5000)[0]
    sampler = Sampler(SamplingParams(seed=1), 5000)
    row[77] = np.inf
    with pytest.raises(LLMGenError, match="infinite"):
        sampler.sample(row)
    row[77] = np.nan
    with pytest.raises(LLMGenError, match="NaN"):
        sampler.sample(row)
    with pytest.raises(LLMGenError, match="masked"):
        sampler.sample(np.full(5000, -np.inf, dtype=np.float32))


@pytest.mark.parametrize("n", [1, 7, 40, 4097, 5120])
@pytest.mark.parametrize("k", [0, 1, 7, 300])
def test_the_head_of_the_vocabulary(n: int, k: int) -> None:
    for row in rows(n):
        index, total = kernels.head(row, k)
        assert index.tolist() == best(Candidates(None, row), k).ids.tolist()
        assert total == pytest.approx(log_total(Candidates(None, row)), rel=1e-6)


def test_draws_follow_the_distribution() -> None:
    """Chi-squared over blocks and within them, for a vocabulary that is drawn from as a whole."""
    n = 5000
    row = (np.random.default_rng(3).standard_normal(n) * 2).astype(np.float32)
    chain = kernels.Chain(n, [Temperature(divisor=1.0)])
    drawn = [chain.choose(row, float(u)) for u in np.random.default_rng(4).random(20_000)]
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    groups = np.argsort(p).argsort() % 50
    expected = np.bincount(groups, weights=p) * len(drawn)
    found = np.bincount(groups[[pair[0] for pair in drawn]], minlength=50)
    assert ((found - expected) ** 2 / expected).sum() < 49 + 4.5 * np.sqrt(2 * 49)
