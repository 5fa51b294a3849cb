"""Models with ALiBi (arXiv:2108.12409): a score falls with the distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import Clamped, LayerNorms, PreNorm
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Alibi, LearnedPositions
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("bloom")
class Bloom(LayerNorms, Alibi, PreNorm):
    """A norm of the embeddings, layer norms, a plain feed-forward with gelu, biases (arXiv:2211.05100)."""

    models = "BLOOM, BLOOMZ"
    ff_kind, activation = "plain", "gelu"

    def embedded(self, b: Ops, w: Weights) -> Value:
        return self.norm(b, w, super().embedded(b, w), "token_embd_norm")


@architecture("refact")
class Refact(Alibi, PreNorm):
    """Llama with ALiBi instead of rotations; biases and divisors of frequencies in its files are not used."""

    models = "Refact 1.6B"
    output_bias = False
    mixture = True  # llama.cpp reads the experts of a file that has some, and uses none

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        name = f"blk.{layer}.ffn_"
        if not w.has(f"{name}gate_inp"):
            return super().fed_forward(b, w, x, layer)
        for part in ("gate_inp", "gate_exps", "up_exps", "down_exps"):
            w.skip(name + part)
        return b.activate(x, self.activation)

    def feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str = "silu") -> Value:
        name, n_ff = f"blk.{layer}.ffn_", self.ff(layer)
        for which in ("gate", "up", "down"):
            w.skip(f"{name}{which}.bias")
        gate, up = (b.linear(x, w.matrix(name + which, n_ff, x.n)) for which in ("gate", "up"))
        return b.linear(b.gated(gate, up, activation), w.matrix(name + "down", self.n_embd, n_ff))

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        for factors in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
            w.skip(factors)
        super().finish(b, w, x)


@architecture("jais")
@dataclass(frozen=True, kw_only=True)
class Jais(LayerNorms, Alibi, PreNorm):
    """GPT-2 with ALiBi and a gated feed-forward; scores are divided by the head's size (arXiv:2308.16149)."""

    models = "Jais 13B and 30B"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, max_bias=keys.real("attention.max_alibi_bias", 0.0), **own)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return super().scores(b, w, layer) | {"scale": 1.0 / self.head_dim}


@architecture("mpt")
@dataclass(frozen=True, kw_only=True)
class MPT(LayerNorms, LearnedPositions, Clamped, Alibi, PreNorm):
    """ALiBi or learned positions, a plain feed-forward; q, k and v may be clamped, q and k normed."""

    models = "MPT 7B and 30B, Replit Code"
    ff_kind, activation = "plain", "gelu"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, max_bias=keys.real("attention.max_alibi_bias", 0.0), **own)

    def embedded(self, b: Ops, w: Weights) -> Value:
        return super().embedded(b, w) if w.has("position_embd") else b.embed(self.embedding(w))

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        q_name, k_name = (f"blk.{layer}.attn_{part}_norm" for part in "qk")
        if w.has(q_name):
            return self.norm(b, w, q, q_name), self.norm(b, w, k, k_name), v
        for name in (k_name, k_name + ".bias"):  # one without the other is not used
            w.skip(name)
        return q, k, v

    def plain_feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str) -> Value:
        """What the activation gives may be divided by a scale for each of its values."""
        name = f"blk.{layer}.ffn_"
        up = b.activate(self.ff_project(b, w, x, name + "up", self.ff(layer)), activation)
        scales = f"blk.{layer}.ffn.act.scales"
        if w.has(scales):
            divisors = w.vector(scales, up.n)
            up = b.multiply(up, w.derived(f"1 / {scales}", lambda: 1.0 / divisors.values))
        return self.ff_project(b, w, up, name + "down", self.n_embd)


@architecture("baichuan")
class Baichuan(Alibi, PreNorm):
    """Llama; the model with 40 layers has ALiBi instead of rotations (arXiv:2309.10305).

    Sizes that were never published have neither, as in llama.cpp (src/models/baichuan.cpp).
    """

    models = "Baichuan and Baichuan 2 7B and 13B"
    neox = False

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, max_bias=8.0 if keys.whole("block_count") == 40 else 0.0, **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [self.rope()] * self.n_layers if self.n_layers == 32 else super().ropes(b, w)
