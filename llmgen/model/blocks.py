"""Forward passes that many architectures share, as base classes.

``PreNorm`` is the usual decoder; what an architecture does otherwise is a class variable
or a method that it overrides.  ``Parallel``, ``PostNorm`` and ``Sandwich`` order a block's
parts in other ways.  The mixins below, and those for positions in ``positions.py``, change one thing each and
stand first among the bases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from llmgen.model.decoder import Decoder
from llmgen.model.keys import MAX_FEED_FORWARD, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
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
        """The end of the forward pass, from the last norm to the logits."""
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
class DraftLayers(Decoder):
    """A file may have further layers behind the model's, which guess tokens (arXiv:2404.19737); they are not used."""

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
