"""PLaMo, PLaMo 2 and PLaMo 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import Parallel, PerLayer, Sandwich
from llmgen.model.hybrid import Hybrid, convolved
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Weights


@architecture("plamo")
class Plamo(Parallel):
    """Attention beside the feed-forward; whole heads are rotated, on halves, whatever the file says."""

    models = "PLaMo 13B"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(keys, **own)
        return super().read(keys, n_rot=model.head_dim, **own)


@dataclass(frozen=True)
class PlamoMixer(Mamba2Layer):
    """Mamba 2 with one B and one C for all heads, which are made, as is the step, behind the convolution and normed."""

    rank: int
    """Values between the inner ones and the heads' steps."""

    def states(self) -> list[State]:
        return [Recurrent(self.inner, self.taps - 1), self.memory()]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n, size = f"blk.{layer}.ssm_", self.n_heads, self.inner // self.n_heads
        both = b.linear(x, w.matrix(f"{name}in", 2 * self.inner, x.n))
        z, inner = (b.head_part(both, n, first, size) for first in (0, size))
        [v] = convolved(b, w, [inner], f"{name}conv1d", self.taps, states[:1])
        sizes = (self.state, self.state, self.rank)
        parts = zip(("b", "c", "dt"), w.matrix(f"{name}x", sum(sizes), v.n).parts(sizes), strict=True)
        k, q, rate = (
            b.rms_norm(b.linear(v, part), w.vector(f"{name}{which}_norm", part.n_rows), self.eps)
            for which, part in parts
        )
        rate = b.linear(rate, w.matrix(f"{name}dt", n, self.rank), w.vector(f"{name}dt.bias", n))
        y = self.scanned(b, w, q, k, v, rate, layer, states[1])
        return b.linear(b.gated(z, y, "silu"), w.matrix(f"{name}out", x.n, self.inner))


@architecture("plamo2")
@dataclass(frozen=True, kw_only=True)
class Plamo2(PerLayer, Hybrid, Sandwich):
    """Mamba 2 where a layer has no key heads, else attention with normed heads; norms before and after the blocks."""

    models = "PLaMo 2 1B to 8B"
    ff_kind = "fused"

    mixer: PlamoMixer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        sizes = Mamba2Layer.read(keys, cls.read_eps(keys), groups=1)
        # src/models/plamo2.cpp of llama.cpp; no key tells it
        rank = max(64, keys.whole("embedding_length") // 16)
        return super().read(keys, mixer=PlamoMixer(**vars(sizes), rank=rank), **own)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        name, n_q, n_k = f"blk.{layer}.attn_", self.heads(layer), self.kv_heads(layer)
        q = b.head_rms_norm(q, w.vector(f"{name}q_norm", self.head_dim, n_q), n_q, self.norm_eps)
        return q, b.head_rms_norm(k, w.vector(f"{name}k_norm", self.head_dim, n_k), n_k, self.norm_eps), v


@architecture("plamo3")
@dataclass(frozen=True, kw_only=True)
class Plamo3(Windowed, Sandwich):
    """Norms before and after the blocks, normed heads, sliding windows with a rotation of their own."""

    models = "PLaMo 3 2B to 31B"
    normed_heads, ff_kind = True, "fused"
    window_period = 8

    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, rope_base_local=keys.real("rope.freq_base_swa", 10000.0, low=1e-3), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        scaling = self.rope_scaling.unstretched()
        whole, local = self.rope(), Rope.of(self.n_rot, self.rope_base_local, self.neox, scaling)
        return [local if is_local else whole for is_local in self.local]
