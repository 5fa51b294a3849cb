"""DeepSeek V2 (arXiv:2405.04434), V3 (arXiv:2412.19437) and their like: latent attention and many small experts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Scores
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("deepseek2")
@dataclass(frozen=True, kw_only=True)
class DeepSeek2(DraftLayers, LatentAttention, Mixture):
    """Latent attention; experts and a shared expert; the first layers are dense.

    YaRN's magnitude multiplies the scores: with the log multiplier m and the factor s of a file by
    (1 + m ln s)^2 (llama.cpp's src/models/deepseek2.cpp, discussion 7416).
    """

    models = "DeepSeek V2, V2 Lite, V2.5, V3, V3.1, R1, Kimi K2, GLM-4.7 Flash, Moonlight, GigaChat 3, Mistral Large 3"
    neox, leading_dense, shared_size = False, True, "count"
    gating, normalized, scaled = None, None, True
    cancels_magnitude: ClassVar[bool] = True
    """Whether rotations have no magnitude where the file has a log multiplier."""

    log_multiplier: float
    """What YaRN's magnitude grows with, times the logarithm of the factor; llama.cpp's converter stores a tenth."""
    temperature_scale: float
    temperature_length: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        scale = keys.real("attention.temperature_scale", 0.0)
        own.setdefault("log_multiplier", keys.real("rope.scaling.yarn_log_multiplier", 0.0) / 0.1)
        return super().read(
            keys,
            temperature_scale=scale,
            temperature_length=keys.whole(
                "attention.temperature_length", None if scale else 0, 0, MAX_CONTEXT
            ),
            **own,
        )

    @classmethod
    def read_scores(cls, keys: Keys) -> Scores:
        if keys.whole("expert_gating_func", 0, 0, 1 << 16):
            return super().read_scores(keys)
        # files of the first models do not say so; among them those of GLM 4.7 Flash
        glm = keys.whole("block_count") in (47, 48) and keys.vocab_size() == 154880
        return "sigmoid" if glm else "softmax"

    def rope(self, factors: np.ndarray | None = None) -> Rope:
        multiplier = 1.0 if self.cancels_magnitude and self.log_multiplier else self.log_multiplier
        scaling = replace(self.rope_scaling, log_multiplier=multiplier)
        return Rope.of(self.n_rot, self.rope_base, self.neox, scaling, factors)

    def score_scale(self) -> float:
        scaling = self.rope_scaling
        log = math.log(scaling.factor)
        magnitude = scaling.attention_factor * (1.0 + 0.1 * log)
        if scaling.kind == "yarn":
            magnitude = self.rope().magnitude
        magnitude *= 1.0 + 0.1 * self.log_multiplier * log
        return magnitude**2 * super().score_scale()

    def query_scale(self, b: Ops) -> np.ndarray | None:
        """Queries grow with every ``temperature_length`` positions (Mistral Large 3)."""
        if not self.temperature_scale:
            return None
        passed = np.arange(b.n_ctx) // max(self.temperature_length, 1)
        return (1.0 + self.temperature_scale * np.log(passed + 1.0)).astype(np.float32)

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        return None
