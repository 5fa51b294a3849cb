"""Forward passes that many architectures share, as base classes.

``PreNorm`` is the usual decoder; what an architecture does otherwise is a class variable
or a method that it overrides.  ``Parallel``, ``PostNorm`` and ``Sandwich`` order a block's
parts in other ways.  The mixins below change one thing each and stand first among the bases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from llmgen.errors import UsageError
from llmgen.model.decoder import Decoder, check_same_heads
from llmgen.model.keys import MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.rope_option import check_stretchable
from llmgen.model.weights import Matrix, Weights


class PreNorm(Decoder):
    """norm, attention, add; norm, feed-forward, add."""

    ff_kind: ClassVar[Literal["gated", "fused", "plain"]] = "gated"
    """The feed-forward: with a gate, with gate and up as one matrix, or without a gate."""
    activation: ClassVar[str] = "silu"
    normed_heads: ClassVar[bool] = False
    """Whether each head of q and k has an RMS norm."""
    ff_norm: ClassVar[str] = "ffn_norm"
    """The name of the norm before the feed-forward."""
    last_norm: ClassVar[str] = "output_norm"
    """The name of the norm before the output matrix."""

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        ropes = self.ropes(b, w)
        x = self.embedded(b, w)
        for layer in self.layers:
            x = self.block(b, w, x, layer, states[layer], ropes[layer])
        self.finish(b, w, self.outcome(b, w, x))

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        """The rotation of each layer."""
        return [self.rope(self.factors(b, w))] * len(self.layers)

    def embedded(self, b: Ops, w: Weights) -> Value:
        """What the first layer gets."""
        return b.embed(self.embedding(w))

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        """One layer."""
        name = f"blk.{layer}."
        x = b.add(x, self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope))
        return b.add(x, self.fed_forward(b, w, self.norm(b, w, x, name + self.ff_norm), layer))

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        """The attention of a layer, whole."""
        qkv = self.projections(b, w, x, layer)
        return self.attention(b, w, qkv, layer, state, rope, **self.scores(b, w, layer))

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        """Queries, keys and values."""
        return (self.normed_qkv if self.normed_heads else self.qkv)(b, w, x, layer)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        """What is special about a layer's scores: arguments of ``attend``."""
        return {}

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The feed-forward of a layer."""
        kinds = {
            "gated": self.feed_forward,
            "fused": self.fused_feed_forward,
            "plain": self.plain_feed_forward,
        }
        return kinds[self.ff_kind](b, w, x, layer, self.activation)

    def outcome(self, b: Ops, w: Weights, x: Value) -> Value:
        """What the layers have left, behind the last norm."""
        return self.norm(b, w, x, self.last_norm)

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        """From the last norm to the logits."""
        b.logits(x, self.output_matrix(w), w.optional_vector("output.bias", self.vocab_size))


class Parallel(PreNorm):
    """Attention and feed-forward side by side, on the same normed input."""

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        h = self.norm(b, w, x, f"blk.{layer}.attn_norm")
        x = b.add(x, self.attended(b, w, h, layer, state, rope))
        return b.add(x, self.fed_forward(b, w, h, layer))


class PostNorm(PreNorm):
    """Norms after attention and feed-forward, and none before them."""

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        a = self.attended(b, w, x, layer, state, rope)
        x = b.add(x, self.norm(b, w, a, name + "post_attention_norm"))
        return b.add(x, self.norm(b, w, self.fed_forward(b, w, x, layer), name + "post_ffw_norm"))


class Sandwich(PreNorm):
    """Norms before and after attention and feed-forward."""

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        a = self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope)
        x = b.add(x, self.post_norm(b, w, a, name + "post_attention_norm"))
        f = self.fed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer)
        return b.add(x, self.post_norm(b, w, f, name + "post_ffw_norm"))

    def post_norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        """The norm after a part."""
        return self.norm(b, w, x, name)


class LayerNorms(Decoder):
    """Layer norms, with a bias where the file has one, instead of RMS norms."""

    eps_key = "attention.layer_norm_epsilon"

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.layer_norm(x, w.vector(name, x.n), w.optional_vector(f"{name}.bias", x.n), self.norm_eps)


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


class NormedWidth(PreNorm):
    """q and k have an RMS norm over their whole width."""

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        name = f"blk.{layer}.attn_"
        return self.norm(b, w, q, name + "q_norm"), self.norm(b, w, k, name + "k_norm"), v


class LayerNormedHeads(PreNorm):
    """Each head of q and k may have a layer norm with weights of its own."""

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        name = f"blk.{layer}.attn_"
        if w.has(name + "q_norm"):
            q_norm = w.vector(name + "q_norm", self.head_dim, self.n_heads)
            k_norm = w.vector(name + "k_norm", self.head_dim, self.n_kv_heads)
            q = b.head_layer_norm(q, q_norm, self.n_heads, self.norm_eps)
            k = b.head_layer_norm(k, k_norm, self.n_kv_heads, self.norm_eps)
        return q, k, v


@dataclass(frozen=True, kw_only=True)
class Clamped(Decoder):
    """q, k and v may be clamped."""

    clamp_default: ClassVar[float | None] = 0.0
    """The limit in a file that does not say so; None: such a file is refused."""

    clamp: float
    """The largest magnitude of their values; 0: any."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, clamp=keys.real("attention.clamp_kqv", cls.clamp_default), **own)

    def qkv(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = super().qkv(b, w, x, layer)
        if not self.clamp:
            return q, k, v
        return b.clamp(q, self.clamp), b.clamp(k, self.clamp), b.clamp(v, self.clamp)


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
class DraftLayers(Decoder):
    """Behind the layers a file may have some that guess further tokens (arXiv:2404.19737); they are not used."""

    n_draft_layers: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", low=1, high=MAX_LAYERS)
        n_draft = keys.whole("nextn_predict_layers", 0, 0, n_layers - 1)
        return super().read(keys, n_layers=n_layers - n_draft, n_draft_layers=n_draft, **own)

    def output_matrix(self, w: Weights) -> Matrix:
        for layer in range(self.n_layers, self.n_layers + self.n_draft_layers):
            w.skip_layer(layer)
        return super().output_matrix(w)


@dataclass(frozen=True, kw_only=True)
class PerLayer(Decoder):
    """Heads and feed-forward differ from layer to layer; 0 of them: the layer has none."""

    layer_heads: tuple[int, ...]
    layer_kv_heads: tuple[int, ...]
    layer_ff: tuple[int, ...]

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count")
        heads = keys.per_layer("attention.head_count", n_layers, high=MAX_HEADS)
        kv_heads = keys.per_layer("attention.head_count_kv", n_layers, heads[0], high=MAX_HEADS)
        ff = keys.per_layer("feed_forward_length", n_layers, high=MAX_FEED_FORWARD)
        if not (any(heads) and any(kv_heads) and any(ff)):
            raise keys.refuse("attention.head_count", "a layer with heads and a feed-forward")
        for layer, (n, n_kv) in enumerate(zip(heads, kv_heads, strict=True)):
            if n_kv and n % n_kv:
                raise keys.fail(
                    "attention.head_count_kv", n_kv, f"a divisor of the {n} heads of layer {layer}"
                )
        return super().read(
            keys,
            layer_heads=heads,
            layer_kv_heads=kv_heads,
            layer_ff=ff,
            n_heads=max(heads),
            n_kv_heads=max(kv_heads),
            n_ff=max(ff),
            **own,
        )

    def heads(self, layer: int) -> int:
        return self.layer_heads[layer]

    def kv_heads(self, layer: int) -> int:
        return self.layer_kv_heads[layer]

    def ff(self, layer: int) -> int:
        return self.layer_ff[layer]


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
