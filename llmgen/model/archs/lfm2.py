"""Liquid AI's LFM 2 (arXiv:2511.23404): short convolutions, and attention in a few layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer
from llmgen.model.decoder import check_same_heads
from llmgen.model.hybrid import Hybrid, convolution_weights
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.state_space import MAX_TAPS
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Weights


@dataclass(frozen=True)
class ShortConvolution:
    """A short convolution, gated by one projection of the input before and by another after."""

    n_embd: int
    taps: int
    """Tokens that it sees."""

    def states(self) -> list[State]:
        """Its states: the last inputs."""
        return [Recurrent(self.n_embd, self.taps - 1)]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n = f"blk.{layer}.shortconv.", self.n_embd
        thirds = w.matrix(f"{name}in_proj", 3 * n, n).parts((n, n, n))
        before, behind, inner = (b.linear(x, part) for part in thirds)
        [weights] = convolution_weights(w, f"{name}conv", self.taps, (n,))
        y = b.multiply(behind, b.convolve(b.multiply(before, inner), weights, None, states[0]))
        return b.linear(y, w.matrix(f"{name}out_proj", n, n))


@architecture("lfm2")
@dataclass(frozen=True, kw_only=True)
class LFM2(PerLayer, Hybrid):
    """Most layers are a gated convolution of the last few tokens, the others have attention with normed heads."""

    models = "LFM 2 350M to 2.6B, LFM 2.5 1.2B"
    normed_heads = True
    last_norm = "token_embd_norm"

    mixer: ShortConvolution
    window: int
    """Sliding window of the layers with attention, in keys; 0: none."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        taps = keys.whole("shortconv.l_cache", low=2, high=MAX_TAPS)
        model = super().read(
            keys,
            mixer=ShortConvolution(keys.whole("embedding_length"), taps),
            window=keys.whole("attention.sliding_window", 0, 0, MAX_CONTEXT),
            **own,
        )
        if model.window:
            check_same_heads(keys, model)
        return model

    def window_of(self, layer: int) -> int:
        return self.window


@architecture("lfm2moe")
@dataclass(frozen=True, kw_only=True)
class LFM2MoE(Mixture, LFM2):
    """LFM 2 with experts behind the first layers."""

    models = "LFM 2 8B A1B and 24B A2B"
    gating, leading_dense = None, True
