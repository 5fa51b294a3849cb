"""The choice of a kind of KV cache for a model: what fits, what keeps the quality, and of that the fastest.

Keys and values are chosen apart, since some models need precise keys (large biases, as in Qwen 2.5) and
stand rough values.  Every candidate is measured on the model itself, against the same model with f16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from llmgen.engine.interfaces import ModelLike
from llmgen.engine.kv_measure import FOUND, Probe, Quality, compare, needle_rank, step_seconds
from llmgen.errors import LLMGenError
from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig

_log = logging.getLogger(__name__)

CANDIDATES = tuple(
    KVCacheConfig.of(kinds)
    for kinds in (
        "f16",
        "k=f16,v=q8_0",
        "q8_0",
        "k=q8_0,v=q4_0",
        "k=q8_0,v=nf4",
        "q4_0",
        "k=q4_0,v=nf4",
        "nf4",
    )
)
"""What is tried.  Values with more bits than keys are not: errors of keys cost more."""
REFERENCE = CANDIDATES[0]
SPEED_STEPS = 8

Open = Callable[[KVCacheConfig], AbstractContextManager[ModelLike]]
Report = Callable[[KVCacheConfig | None, int, int], object]
"""Called with a candidate that is about to be measured, its number from 0, and how many there are; and with None
while another program measures and this one waits for it."""


@dataclass(frozen=True)
class Candidate:
    """One kind, as far as it was measured."""

    kinds: KVCacheConfig
    bytes_per_token: int
    bytes_per_context: int
    fits: bool
    quality: Quality | None = None
    needle_rank: int | None = None
    step_seconds: float | None = None
    failed: tuple[str, ...] = ()
    """The gates that it did not pass, each with its figure and limit."""

    @property
    def passes(self) -> bool:
        return self.quality is not None and not self.failed


@dataclass(frozen=True)
class Plan:
    """The result: all candidates, which one was chosen and why."""

    n_ctx: int
    budget_bytes: int | None
    candidates: tuple[Candidate, ...]
    chosen: KVCacheConfig
    reason: str
    passed: bool
    """Whether the chosen one passed the gates."""


def choose(
    open_model: Open,
    sized: Sequence[Candidate],
    probe: Probe,
    n_ctx: int,
    budget: int | None,
    config: KVAutoConfig,
    report: Report = lambda kinds, done, total: None,
) -> Plan:
    """Measure what fits and choose; ``sized``: the candidates with their sizes.

    Raises LLMGenError where nothing fits.
    """
    fitting = [candidate for candidate in sized if candidate.fits]
    if not fitting:
        raise _nothing_fits(sized, n_ctx, budget)
    measured = _measured(open_model, fitting, probe, n_ctx, config, report)
    everything = tuple(measured.get(candidate.kinds, candidate) for candidate in sized)
    chosen, reason = _best(list(measured.values()))
    _log.debug("KV cache %s: %s", chosen.kinds, reason)
    return Plan(n_ctx, budget, everything, chosen.kinds, reason, chosen.passes)


def check_passed(plan: Plan, config: KVAutoConfig) -> Plan:
    """The plan.  Raises LLMGenError with ``config.strict`` where what was chosen does not pass."""
    if config.strict and not plan.passed:
        raise LLMGenError(f"KV cache: {plan.reason}; allow more, or leave --kv-strict out")
    return plan


def _measured(
    open_model: Open,
    candidates: Sequence[Candidate],
    probe: Probe,
    n_ctx: int,
    config: KVAutoConfig,
    report: Report,
) -> dict[KVCacheConfig, Candidate]:
    measured = {}
    with open_model(REFERENCE) as reference:
        exact_rank = needle_rank(reference, probe)
        for number, candidate in enumerate(candidates):
            report(candidate.kinds, number, len(candidates))
            with open_model(candidate.kinds) as model:
                quality = compare(reference, model, probe.ids, probe.n_steps)
                rank = needle_rank(model, probe)
                done = replace(candidate, quality=quality, needle_rank=rank)
                done = replace(done, failed=tuple(_failures(quality, rank, exact_rank, config)))
                if done.passes:
                    done = replace(done, step_seconds=step_seconds(model, n_ctx, SPEED_STEPS))
                measured[candidate.kinds] = done
    return measured


def _failures(quality: Quality, rank: int, exact_rank: int, config: KVAutoConfig) -> list[str]:
    """The gates that were not passed."""
    gates = (
        ("difference of NLL", quality.delta_nll, config.max_delta_nll),
        ("ratio of perplexities", quality.ppl_ratio, config.max_ppl_ratio),
        ("mean KL", quality.mean_kl, config.max_mean_kl),
    )
    failed = [f"{name} {value:.3g}, at most {limit:g}" for name, value, limit in gates if not value <= limit]
    if exact_rank <= FOUND < rank:
        failed.append(f"rank of the hidden fact {rank}, with f16 {exact_rank}")
    return failed


def _best(measured: list[Candidate]) -> tuple[Candidate, str]:
    passing = [candidate for candidate in measured if candidate.step_seconds is not None]
    if passing:
        chosen = min(passing, key=lambda c: c.step_seconds or 0.0)
        return chosen, (
            f"the fastest of {len(passing)} that fit and pass, {1000 * (chosen.step_seconds or 0):.2f} ms a token"
        )
    chosen = min(measured, key=lambda c: c.quality.mean_kl if c.quality else float("inf"))
    return chosen, (
        f"no kind that fits passes the gates, and {chosen.kinds}, which has the least mean KL, fails: "
        f"{', '.join(chosen.failed)}"
    )


def nothing_to_choose(n_ctx: int) -> Plan:
    """The plan for a model without keys and values."""
    reason = "this model keeps no keys and values, so there is nothing to plan"
    return Plan(n_ctx, None, (), REFERENCE, reason, True)


def _nothing_fits(sized: Sequence[Candidate], n_ctx: int, budget: int | None) -> LLMGenError:
    least = min(sized, key=lambda candidate: candidate.bytes_per_context)
    return LLMGenError(
        f"no KV cache for {n_ctx} tokens fits into {_megabytes(budget or 0)}: the smallest, {least.kinds}, takes "
        f"{_megabytes(least.bytes_per_context)}; allow more (--kv-budget) or choose a smaller context (-c)"
    )


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f} MB" if n >= 1_000_000 else f"{n / 1e6:.3g} MB"
