"""A sampling step in one compiled call chooses what the steps in numpy choose."""

from __future__ import annotations

import numpy as np
import pytest

from llmgen.errors import LLMGenError
from llmgen.generation import Sampler, SamplingParams, native
from llmgen.generation.candidates import Candidates, best, log_total

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
}


def rows(n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    plain = (rng.standard_normal(n) * 4).astype(np.float32)
    masked = plain.copy()
    masked[rng.random(n) < 0.5] = -np.inf
    ties = np.round(plain).astype(np.float32)
    sharp = plain.copy()
    sharp[n - 1] = 60
    flat = np.full(n, -2.5, dtype=np.float32)
    return [plain, masked, ties, sharp, flat]


@pytest.mark.parametrize("n", [4097, 5120, 9000])
@pytest.mark.parametrize("name", SETTINGS)
def test_at_once_and_in_steps_choose_the_same(name: str, n: int) -> None:
    params = SamplingParams(seed=n, **SETTINGS[name])
    at_once, in_steps = (Sampler(params, n, prompt_ids=[5, 6, 7], eog_ids=[1]) for _ in range(2))
    assert at_once._chooser is not None
    in_steps._chooser = None
    for row in rows(n):
        for _ in range(8):
            token = at_once.sample(row).token_id
            assert token == in_steps.sample(row).token_id
            assert row[token] > -np.inf
    assert at_once.mu == pytest.approx(in_steps.mu, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"xtc_probability": 0.5},
        {"top_n_sigma": 1.0},
        {"dynatemp_range": 0.2},
        {"mirostat": 1},
        {"samplers": ("temperature", "min_p")},
        {"logprobs": 2, "logprobs_mode": "processed"},
    ],
)
def test_unusual_options_take_the_steps(options: dict[str, object]) -> None:
    assert Sampler(SamplingParams(**options), 5000)._chooser is None


def test_logits_that_are_no_numbers_have_the_same_results() -> None:
    row = rows(5000)[0]
    sampler = Sampler(SamplingParams(seed=1), 5000)
    row[77] = np.inf
    assert sampler.sample(row).token_id == 77
    row[77] = np.nan
    with pytest.raises(LLMGenError, match="NaN"):
        sampler.sample(row)
    with pytest.raises(LLMGenError, match="masked"):
        sampler.sample(np.full(5000, -np.inf, dtype=np.float32))


@pytest.mark.parametrize("n", [4097, 5120])
@pytest.mark.parametrize("k", [0, 1, 7, 300])
def test_the_head_of_the_vocabulary(n: int, k: int) -> None:
    for row in rows(n):
        found = native.head(row, k)
        assert found is not None
        assert found[0].tolist() == best(Candidates(None, row), k).ids.tolist()
        assert found[1] == pytest.approx(log_total(Candidates(None, row.astype(np.float64))), rel=1e-6)


def test_draws_follow_the_distribution() -> None:
    """Chi-squared over blocks and within them, for a vocabulary that is drawn from as a whole."""
    n = 5000
    row = (np.random.default_rng(3).standard_normal(n) * 2).astype(np.float32)
    chooser = native.Chooser(n, temp=1.0)
    drawn = [chooser.choose(row, float(u)) for u in np.random.default_rng(4).random(20_000)]
    p = np.exp(row.astype(np.float64))
    p /= p.sum()
    groups = np.argsort(p).argsort() % 50
    expected = np.bincount(groups, weights=p) * len(drawn)
    found = np.bincount(groups[[pair[0] for pair in drawn]], minlength=50)
    assert ((found - expected) ** 2 / expected).sum() < 49 + 4.5 * np.sqrt(2 * 49)
