"""From the options to the stages of the compiled step: the arguments of each sampler, and when it is on.

Where llmgen shares a method with llama.cpp, the rules for edge cases (which side of a threshold stays, what
switches it off) are those of its src/llama-sampler.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llmgen.backends.cpu.kernels.sampling_arguments import (
    Dry,
    DynamicTemperature,
    MinP,
    Mirostat1,
    Mirostat2,
    Penalties,
    Temperature,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from llmgen.sampling.params import SamplingParams

Stage = Any
"""One of the tables of sampling_arguments.STAGES, filled in."""

LEAST_TEMPERATURE = 1e-6
"""Lower temperatures are raised to this one."""
_LARGEST_EXPONENT = 88.7  # exp of it is about the largest float32
_CHANGES_LOGITS = ("penalties", "dry")


def stages(p: SamplingParams, n_ctx: int) -> list[Stage]:
    """The stages that have an effect under these options, in order; ``n_ctx`` is the window that -1 stands for.

    Greedy and Mirostat take only the samplers that change logits, and Mirostat applies temperature first.
    """
    plain = not p.greedy and not p.mirostat
    names = [name for name in p.samplers if plain or name in _CHANGES_LOGITS]
    chain = [stage for name in names if (stage := SAMPLERS[name](p, n_ctx)) is not None]
    if p.mirostat and not p.greedy:
        chain += [_steady_temperature(p), Mirostat1() if p.mirostat == 1 else Mirostat2()]
    return chain


def _penalties(p: SamplingParams, n_ctx: int) -> Stage | None:
    """A positive logit is divided by ``repeat``, another multiplied by it (Keskar et al. 2019, CTRL, with the
    sign rule of Hugging Face and llama.cpp); then count * frequency + presence is subtracted (OpenAI API).
    """
    if (p.repeat_penalty, p.presence_penalty, p.frequency_penalty) == (1, 0, 0) or not p.repeat_last_n:
        return None
    return Penalties(
        last_n=n_ctx if p.repeat_last_n < 0 else p.repeat_last_n,
        repeat=p.repeat_penalty,
        frequency=p.frequency_penalty,
        presence=p.presence_penalty,
    )


def _dry(p: SamplingParams, n_ctx: int) -> Stage | None:
    """If the text ends with ``length`` tokens that occurred before, the token that followed them then loses
    multiplier * base ** (length - allowed).
    """
    if p.dry_multiplier <= 0 or not p.dry_penalty_last_n:
        return None
    longest = -1  # no limit, unless float32 would overflow
    if p.dry_base > 1.000001:
        longest = p.dry_allowed_length + int(_LARGEST_EXPONENT / math.log(p.dry_base))
    last_n = n_ctx if p.dry_penalty_last_n < 0 else p.dry_penalty_last_n
    return Dry(last_n=last_n, allowed=p.dry_allowed_length, longest=longest)


def _temperature(p: SamplingParams, n_ctx: int) -> Stage:
    """T = low + (high - low) * (H / ln n) ** exponent (kalomaze's dynamic temperature, as in llama.cpp)."""
    if p.dynatemp_range <= 0:
        return _steady_temperature(p)
    low, high = max(0.0, p.temp - p.dynatemp_range), p.temp + p.dynatemp_range
    return DynamicTemperature(low=low, high=high, exponent=p.dynatemp_exponent)


def _steady_temperature(p: SamplingParams) -> Stage:
    return Temperature(divisor=max(p.temp, LEAST_TEMPERATURE))


SAMPLERS: dict[str, Callable[[SamplingParams, int], Stage | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    # logits at most n deviations below the best (Tang et al. 2024)
    "top_n_sigma": lambda p, n_ctx: TopNSigma(n=p.top_n_sigma) if p.top_n_sigma > 0 else None,
    # the k most likely (Fan, Lewis, Dauphin 2018)
    "top_k": lambda p, n_ctx: TopK(k=p.top_k) if p.top_k else None,
    # those whose surprise is nearest the entropy, until their sum exceeds p (Meister et al. 2022)
    "typ_p": lambda p, n_ctx: Typical(p=p.typical_p) if p.typical_p < 1 else None,
    # the fewest most likely that together reach p (Holtzman et al. 2019)
    "top_p": lambda p, n_ctx: TopP(p=p.top_p) if p.top_p < 1 else None,
    # those at least p times as likely as the best (Nguyen et al. 2024)
    "min_p": lambda p, n_ctx: MinP(ln_p=math.log(p.min_p)) if p.min_p > 0 else None,
    # of those with p >= threshold only the least likely stays (p-e-w, text-generation-webui, 2024);
    # two can reach no threshold over 0.5
    "xtc": lambda p, n_ctx: (
        Xtc(threshold=p.xtc_threshold) if p.xtc_probability > 0 and p.xtc_threshold <= 0.5 else None
    ),
    "temperature": _temperature,
}
"""By name in ``SamplingParams.samplers``: the stage, or None where the options switch it off."""
