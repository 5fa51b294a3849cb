"""In which kinds of numbers the keys and values of a sequence are kept."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmgen.arguments import real_number, whole_number, yes_or_no
from llmgen.errors import UsageError, kind_of, shown

KV_KINDS = ("f32", "f16", "bf16", "q8_0", "q4_0", "nf4")
"""The kinds, most bytes first; docs/generation.md says what each costs."""
AUTO = "auto"
"""In place of a kind: choose one by measuring the model."""
_SPELLINGS = {"fp32": "f32", "fp16": "f16", "q8": "q8_0", "q4": "q4_0"}


@dataclass(frozen=True)
class KVCacheConfig:
    """The kind of the keys (k) and of the values (v).

    Latent attention keeps neither: its contents (c), which values are projected from, are of v's kind and
    its rotated position parts (r) of k's, unless these are said.  Raises UsageError for an unknown kind.
    """

    k: str = "f16"
    v: str = "f16"
    c: str | None = None
    r: str | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            kind = getattr(self, field.name)
            if kind is not None or field.default is not None:
                object.__setattr__(self, field.name, _kind(kind))

    @property
    def latent(self) -> KVCacheConfig:
        """The kinds of a latent state, whose keys are the position parts and whose values are the contents."""
        return KVCacheConfig(self.r or self.k, self.c or self.v)

    @classmethod
    def of(cls, kinds: object) -> KVCacheConfig:
        """The kinds that a text names: one for all ("q8_0"), or each ("k=q8_0,v=f16"; what is not named is f16)."""
        if isinstance(kinds, KVCacheConfig):
            return kinds
        if kinds == AUTO or isinstance(kinds, KVAutoConfig):
            raise UsageError(
                "the KV cache type auto measures the model, and here one kind is needed; "
                "`llmgen plan` shows which it would be (--kv-type)"
            )
        if not isinstance(kinds, str):
            raise UsageError(f"kv_type must be a text or a KVCacheConfig, not {type(kinds).__name__}")
        if "=" not in kinds:
            kind = _kind(kinds)
            return cls(kind, kind)
        return cls(**_parts(kinds))

    def __str__(self) -> str:
        named = [f"{part}={kind}" for part, kind in (("c", self.c), ("r", self.r)) if kind is not None]
        if self.k == self.v and not named:
            return self.k
        return ",".join([f"k={self.k}", f"v={self.v}", *named])


@dataclass(frozen=True)
class KVAutoConfig:
    """How a kind is chosen for a model by measuring it (engine/kv_plan.py).

    budget_mb: the most the cache may take for the whole context, in MB (10^6 bytes); None: half of the free memory.
    max_delta_nll, max_ppl_ratio, max_mean_kl: what a kind may cost against f16 in mean -ln p, in
    perplexity and in mean KL divergence.  probe_tokens, probe_steps: over how much text that is measured.
    plan_file: where results are kept, a path, None: in the user's state folder; probe_interval: for how many
    seconds they hold.  strict: refuse, instead of taking the best kind that there is, if none passes.
    Raises UsageError.
    """

    budget_mb: float | None = None
    max_delta_nll: float = 0.05
    max_ppl_ratio: float = 1.05
    max_mean_kl: float = 0.1
    plan_file: str | os.PathLike[str] | None = None
    probe_interval: float = 3600.0
    probe_tokens: int = 64
    probe_steps: int = 4
    strict: bool = False

    def __post_init__(self) -> None:
        for name, (flag, low, high) in _AUTO_NUMBERS.items():
            value = getattr(self, name)
            if value is not None or name != "budget_mb":
                check = whole_number if isinstance(low, int) else real_number
                object.__setattr__(self, name, check(f"{name} ({flag})", value, low, high))
        if not isinstance(self.plan_file, str | os.PathLike | None):
            raise UsageError(f"plan_file (--kv-plan) must be a path, not {kind_of(self.plan_file)}")
        yes_or_no("strict (--kv-strict)", self.strict)

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes."""
        return None if self.budget_mb is None else int(self.budget_mb * 1_000_000)

    @property
    def plan_path(self) -> Path | None:
        """The plan file that was named."""
        return None if self.plan_file is None else Path(os.path.expanduser(self.plan_file))


_MOST = 10**12
"""Of what is multiplied: MB, and numbers of tokens."""
_AUTO_NUMBERS: dict[str, tuple[str, Any, Any]] = {
    "budget_mb": ("--kv-budget", 0.0, _MOST),
    "max_delta_nll": ("--kv-max-delta-nll", 0.0, math.inf),
    "max_ppl_ratio": ("--kv-max-ppl-ratio", 1.0, math.inf),
    "max_mean_kl": ("--kv-max-mean-kl", 0.0, math.inf),
    "probe_interval": ("--kv-probe-interval", 0.0, math.inf),
    "probe_tokens": ("--kv-probe-tokens", 2, _MOST),
    "probe_steps": ("--kv-probe-steps", 1, _MOST),
}
"""Flag, least and most of the numbers of KVAutoConfig; those with a whole number as the least are whole."""


def _parts(text: str) -> dict[str, str]:
    names = [field.name for field in fields(KVCacheConfig)]
    parts: dict[str, str] = {}
    for item in text.split(","):
        name, _, kind = (word.strip() for word in item.partition("="))
        if name not in names or name in parts:
            raise UsageError(
                f"the KV cache type {shown(text)} is not understood at {shown(item)}; "
                "write one kind for all, or k=KIND,v=KIND, and c=KIND,r=KIND for latent attention (--kv-type)"
            )
        parts[name] = kind
    return parts


def _kind(text: object) -> str:
    """The kind that a text means."""
    kind = _SPELLINGS.get(text, text) if isinstance(text, str) else text
    if kind == AUTO:
        raise UsageError(
            "'auto' chooses the kinds of keys and values together; write it alone, or name both kinds (--kv-type)"
        )
    if kind not in KV_KINDS:
        raise UsageError(
            f"unknown KV cache type {shown(text)}; choose one of {', '.join(KV_KINDS)}, "
            "k=KIND,v=KIND for keys and values apart, or auto (--kv-type)"
        )
    return str(kind)
