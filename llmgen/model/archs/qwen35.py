"""Qwen 3 Next and Qwen 3.5: gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.delta_net import DeltaNet
from llmgen.model.hybrid import Hybrid, recurrent_layers
from llmgen.model.keys import Keys
from llmgen.model.mixtures import GatedShared
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import Sections
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@dataclass(frozen=True, kw_only=True)
class DeltaHybrid(DraftLayers, Hybrid):
    """Most layers have a delta net; in the others each head has queries and gates, one after the other."""

    normed_heads = True
    ff_norm = "post_attention_norm"
    delta_net: ClassVar[type[DeltaNet]] = DeltaNet
    tiled: ClassVar[bool]
    """How heads of k serve those of v in a delta net, see ``Ops.linear_attend``."""

    mixer: DeltaNet
    recurrent: tuple[bool, ...]
    """For each layer whether it has a delta net."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            mixer=cls.delta_net.read(keys, cls.read_eps(keys), tiled=cls.tiled),
            recurrent=recurrent_layers(keys, period=4),
            **own,
        )

    def is_recurrent(self, layer: int) -> bool:
        return self.recurrent[layer]

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if self.is_recurrent(layer):
            return self.mixer(b, w, x, layer, state)
        q, gate = self.queries_and_gates(b, w, x, layer)
        k, v = self.keys_and_values(b, w, x, layer)
        seen = self.keys_seen(b, w, x, layer, state, rope)
        a = self.attend(b, w, (q, k, v), layer, state[0], rope, **self.scores(b, w, layer), **seen)
        return self.attention_output(b, w, b.gated(gate, a, "sigmoid"), layer)

    def keys_seen(
        self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle], rope: Rope
    ) -> dict[str, Any]:
        """Which keys a layer attends to, if not all: arguments of ``attend``."""
        return {}

    def queries_and_gates(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value]:
        """Normed queries, and what their results are gated with."""
        name, n, size = f"blk.{layer}.attn_q", self.n_heads, self.head_dim
        both = self.part(b, w, x, name, n * 2 * size)
        q, gate = (b.head_part(both, n, first, size) for first in (0, size))
        return b.head_rms_norm(q, w.vector(f"{name}_norm", size), n, self.norm_eps), gate

    def part(self, b: Ops, w: Weights, x: Value, name: str, n_rows: int) -> Value:
        """A projection to queries, keys or values, with the bias that the file has for it if it is used."""
        if self.qkv_bias:
            return self.project(b, w, x, name, n_rows)
        w.skip(f"{name}.bias")
        return b.linear(x, w.matrix(name, n_rows, x.n))

    def keys_and_values(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value]:
        """Normed keys, and values."""
        name, n = f"blk.{layer}.attn_", self.n_kv_heads
        k = self.part(b, w, x, f"{name}k", n * self.head_dim)
        v = self.part(b, w, x, f"{name}v", n * self.value_dim)
        return b.head_rms_norm(k, w.vector(f"{name}k_norm", self.head_dim), n, self.norm_eps), v


@architecture("qwen35")
@dataclass(frozen=True, kw_only=True)
class Qwen35(DeltaHybrid, Sections):
    """Gated delta nets, and in every fourth layer attention with normed heads whose results are gated."""

    models = "Qwen 3.5 0.8B to 27B (text)"
    interleaved = True
    tiled = True


@architecture("qwen35moe")
@dataclass(frozen=True, kw_only=True)
class Qwen35MoE(GatedShared, Qwen35):
    """Qwen 3.5 with experts and a gated shared expert."""

    models = "Qwen 3.5 35B A3B to 397B A17B (text)"
    expert_size = "divided"
