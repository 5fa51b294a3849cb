"""Where tokens stand, as mixins: learned positions, slopes, rotations of other kinds, sliding windows.

Each changes one thing of ``blocks.PreNorm`` and stands first among the bases of an architecture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.errors import UsageError
from llmgen.model.blocks import PreNorm
from llmgen.model.decoder import Decoder, check_same_heads
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, Keys
from llmgen.model.ops import Ops, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.rope_option import check_stretchable
from llmgen.model.weights import Weights


class LearnedPositions(PreNorm):
    """Each position has a row of its own, which is added to the embedding, and nothing is rotated."""

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * len(self.layers)

    def embedded(self, b: Ops, w: Weights) -> Value:
        check_stretchable(self, False)
        if b.n_ctx > self.context_length:
            raise UsageError(
                f"the model has learned positions for {self.context_length:,} tokens, expected a context of no "
                f"more, not of {b.n_ctx:,}; choose a smaller one (-c)"
            )
        rows = w.matrix("position_embd", self.context_length, self.n_embd)
        return b.add(super().embedded(b, w), b.embed_positions(rows))


@dataclass(frozen=True, kw_only=True)
class Alibi(PreNorm):
    """Scores fall with the distance, and nothing is rotated."""

    max_bias: float = 8.0
    """How fast: see ``alibi_slopes``; 0: they do not."""

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * len(self.layers)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        if not self.max_bias:
            return {}
        return super().scores(b, w, layer) | {"slopes": alibi_slopes(self.heads(layer), self.max_bias)}


class NormedAfterRope(Decoder):
    """Each head of q and k has an RMS norm that comes after the rotation."""

    def rotated(
        self,
        b: Ops,
        w: Weights,
        qkv: tuple[Value, Value, Value],
        layer: int,
        rope: Rope,
        scale: float | None,
        position_scale: np.ndarray | None,
    ) -> tuple[Value, Value, Value]:
        q, k, v = super().rotated(b, w, qkv, layer, rope, 1.0, None)
        q, k = self.norm_heads(b, w, q, k, layer)
        scale = self.head_dim**-0.5 if scale is None else scale
        return b.rope(q, self.heads(layer), NOPE, scale, position_scale), k, v


@dataclass(frozen=True, kw_only=True)
class Windowed(PreNorm):
    """Some layers have a sliding window, after a pattern."""

    window_default: ClassVar[int | None] = 0
    """The window of a file without that key; 0: none; None: such a file is refused."""
    window_period: ClassVar[int] = 4
    """Every n-th layer sees the whole context, unless the file says otherwise."""
    own_rotation: ClassVar[bool] = False
    """Whether layers with the window may turn another part of a head."""
    own_heads: ClassVar[bool] = False
    """Whether the heads of layers with the window may have other sizes."""
    global_first: ClassVar[bool] = False
    """Whether that is the first layer of a period, not the last."""

    window: int
    local: tuple[bool, ...]
    """For each layer whether it has the window."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count")
        if "window" not in own:
            own["window"] = keys.whole("attention.sliding_window", cls.window_default, 0, MAX_CONTEXT)
        if not own["window"]:
            own["local"] = (False,) * n_layers
        elif "local" not in own:
            key = "attention.sliding_window_pattern"
            own["local"] = keys.every_nth(key, n_layers, cls.window_period, cls.global_first)
        model = super().read(keys, **own)
        if model.window and not cls.own_heads:
            check_same_heads(keys, model, not cls.own_rotation)
        return model

    def window_of(self, layer: int) -> int:
        return self.window if self.local[layer] else 0


@dataclass(frozen=True, kw_only=True)
class LocalRopes(Windowed):
    """Layers with the window may rotate with a base of their own."""

    local_base_default: ClassVar[float | None] = None
    """That base in a file that does not say so; None: the one of the other layers."""
    local_scaled: ClassVar[bool] = True
    """Whether the positions of layers with the window are scaled like the others'."""

    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = cls.local_base_default or keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(keys, rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole, local = self.rope(self.factors(b, w)), self.local_rope()
        return [local if is_local else whole for is_local in self.local]

    def local_rope(self) -> Rope:
        """The rotation of layers with the window."""
        scaling = self.rope_scaling if self.local_scaled else self.rope_scaling.unstretched()
        return Rope.of(self.n_rot, self.rope_base_local, self.neox, scaling)


@dataclass(frozen=True, kw_only=True)
class Sections(PreNorm):
    """Positions with several axes, of which text needs one (M-RoPE, arXiv:2409.12191).

    The pairs of a head are shared out among time, height, width and a fourth axis.  For
    text the first three count tokens and the fourth stands still (llama.cpp's
    ``llm_graph_input_pos``), so pairs that fall to it are not rotated.
    Such rotations are on halves; those of files without sections are as ``neox`` says.
    """

    interleaved: ClassVar[bool] = False
    """Whether the first three axes take turns, as in Qwen 3 VL, instead of one range of pairs each."""
    sections_required: ClassVar[bool] = True

    sections: tuple[int, ...]
    """Pairs of each axis; empty where the file has plain rotations."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        key = "rope.dimension_sections"
        if keys.get(key) is None and not cls.sections_required:
            return super().read(keys, sections=(), **own)
        given = keys.get(key)
        n = min(len(given), 4) if isinstance(given, np.ndarray) else 4
        sections = keys.per_layer(key, n, high=MAX_HEADS) + (0,) * (4 - n)
        plain = not cls.sections_required and 0 in sections[:2]
        if not plain and not any(sections):
            raise keys.refuse(key, "numbers of pairs that are not all 0")
        return super().read(keys, sections=() if plain else sections, **own)

    def rope(self, factors: np.ndarray | None = None) -> Rope:
        rotation = super().rope(factors)
        return replace(rotation, neox=True) if self.sections else rotation

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        factors = self.factors(b, w)
        if self.sections:
            still = np.where([self._turns(i) for i in range(self.n_rot // 2)], 1.0, np.inf)
            factors = still if factors is None else factors * still
        return [self.rope(factors)] * len(self.layers)

    def _turns(self, pair: int) -> bool:
        """Whether a pair belongs to one of the axes that count tokens."""
        sector = pair % sum(self.sections)
        if self.interleaved:
            return sector < 3 * self.sections[sector % 3]
        return sector < sum(self.sections[:3])


def alibi_slopes(n_heads: int, max_bias: float) -> np.ndarray:
    """The slope of each head (ALiBi, arXiv:2108.12409), float32 [n_heads].

    A geometric sequence down to 2^-max_bias where n_heads is a power of two; the heads
    beyond the largest power take every other slope of the sequence twice as long.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-max_bias / power * (head + 1)) for head in range(power)]
    slopes += [2 ** (-max_bias / 2 / power * (2 * head + 1)) for head in range(n_heads - power)]
    return np.array(slopes, np.float32)
