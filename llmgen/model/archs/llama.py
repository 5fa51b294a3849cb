"""Llama (arXiv:2302.13971) and architectures that differ from it in a detail or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import NormedAfterRope
from llmgen.model.rope import NOPE, Rope, RopeScaling
from llmgen.model.weights import Weights


@architecture("llama")
class Llama(Mixture):
    """Pre-norm transformer with rotary positions on neighbouring pairs and a gated feed-forward, perhaps of experts."""

    models = "Llama 1, 2, 3.x, Mistral 7B, Mixtral, SmolLM 1 and 2, TinyLlama, Yi, Vicuna"
    neox, expert_size, may_be_dense = False, "whole", True

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        if self.rope_scaling.kind == "longrope":
            return self.longrope_factors(b, w)
        return self.rope_factors(w, "rope_freqs")


@architecture("mistral3")
@dataclass(frozen=True, kw_only=True)
class Mistral3(Llama):
    """Llama whose queries may grow beyond the original context, and whose file may set YaRN's ramp."""

    models = "Ministral 3, Mistral Small 3.x"

    temperature_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = Llama.read(keys)
        own["rope_scaling"] = RopeScaling.read(keys, base.context_length, ramp=True)
        return super().read(keys, temperature_scale=keys.real("attention.temperature_scale", 0.0), **own)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        """Queries grow by 1 + scale * ln(1 + how often the original context has been passed)."""
        if not self.temperature_scale:
            return {}
        passed = np.arange(b.n_ctx) // max(self.rope_scaling.original_context, 1)
        return {"position_scale": (1.0 + self.temperature_scale * np.log(passed + 1.0)).astype(np.float32)}


@architecture("internlm2", "xverse")
class InternLM2(PreNorm):
    """Llama."""

    models = "InternLM 2 and 2.5 (arXiv:2403.17297), XVERSE"
    neox = False


@architecture("arcee")
class Arcee(PreNorm):
    """Llama with a feed-forward without a gate, whose activation is the square of ReLU."""

    models = "Arcee Foundation Model AFM 4.5B"
    neox, ff_kind, activation = False, "plain", "relu_squared"


@architecture("smollm3")
class SmolLM3(PreNorm):
    """Llama in which every fourth layer does not rotate (NoPE)."""

    models = "SmolLM3 3B"
    neox = False

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE if layer % 4 == 3 else self.rope() for layer in self.layers]


@architecture("maincoder")
class Maincoder(NormedAfterRope, PreNorm):
    """Llama with an RMS norm over each rotated head of q and k."""

    models = "Maincoder 1B"
    neox = False


@architecture("exaone")
class Exaone(PreNorm):
    """Llama with rotary positions on halves."""

    models = "EXAONE 3.0 and 3.5 (arXiv:2412.04862), EXAONE Deep"


@architecture("seed_oss")
class SeedOSS(PreNorm):
    """Llama with rotary positions on halves, and another name for the second norm."""

    models = "Seed-OSS 36B"
    ff_norm = "post_attention_norm"


@architecture("pangu-embedded")
class PanguEmbedded(PreNorm):
    """Llama with rotary positions on halves; divisors of frequencies in its files are not used."""

    models = "openPangu Embedded 1B and 7B"

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
            w.skip(name)
        return None


@architecture("nanbeige")
@dataclass(frozen=True, kw_only=True)
class Nanbeige(PreNorm):
    """Llama that may run through its layers several times, each time with keys and values of its own."""

    models = "Nanbeige 4"
    neox = False

    n_loops: int
    normed_between: bool
    """Whether the last norm also stands between two loops."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_loops = keys.whole("num_loops", 1, high=64)
        between = not keys.flag("skip_loop_final_norm", False)
        return super().read(keys, n_loops=n_loops, normed_between=between, **own)

    @property
    def layers(self) -> range:
        return range(self.n_layers * self.n_loops)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        x = super().block(b, w, x, layer % self.n_layers, state, rope)
        if self.normed_between and layer + 1 in self.layers and (layer + 1) % self.n_layers == 0:
            x = self.norm(b, w, x, "output_norm")
        return x
