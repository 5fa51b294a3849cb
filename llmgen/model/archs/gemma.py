"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder, check_same_heads
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.ops import Ops, StateHandle
from llmgen.model.rope import Rope, RopeScaling
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@architecture("gemma")
class Gemma(Decoder):
    """Llama with scaled embeddings and gelu; always tied."""

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope = self.rope()
        x = b.embed(self.embedding(w), scale=math.sqrt(self.n_embd))
        for layer in range(self.n_layers):
            qkv = self.qkv(b, w, self.norm(b, w, x, f"blk.{layer}.attn_norm"), layer)
            x = b.add(x, self.attention(b, w, qkv, layer, states[layer], rope))
            h = self.norm(b, w, x, f"blk.{layer}.ffn_norm")
            x = b.add(x, self.feed_forward(b, w, h, layer, "gelu"))
        b.logits(self.norm(b, w, x, "output_norm"), self.embedding(w))


@dataclass(frozen=True, kw_only=True)
class _Windowed(Decoder):
    """What Gemma 2 and 3 share: norms before and after each block, layers with a sliding window."""

    window_default: ClassVar[int]
    window_period: ClassVar[int]
    """Every so-manieth layer sees the whole context, unless the file says otherwise."""
    odd_size: ClassVar[int]
    """The number of layers of the one model whose scores are scaled as if heads filled the embedding."""

    window: int
    local: tuple[bool, ...]
    rope_base_local: float
    final_cap: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        window = keys.whole("attention.sliding_window", cls.window_default, 0, MAX_CONTEXT)
        n_layers = keys.whole("block_count")
        key = "attention.sliding_window_pattern"
        local = keys.every_nth(key, n_layers, cls.window_period) if window else (False,) * n_layers
        model = super().read(keys, window=window, local=local, **own)
        if window:
            check_same_heads(keys, model.head_dim, model.n_rot)
        return model

    def states(self) -> list[State]:
        return [
            KV(self.n_kv_heads, self.head_dim, self.head_dim, self.window if local else 0)
            for local in self.local
        ]

    def sandwich(
        self,
        b: Ops,
        w: Weights,
        states: Sequence[StateHandle],
        local_scaling: RopeScaling,
        *,
        normed_heads: bool,
        cap: float,
    ) -> Any:
        """All layers, and the last norm."""
        projections = self.normed_qkv if normed_heads else self.qkv
        rope = self.rope()
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, local_scaling)
        scale = (self.n_embd // self.n_heads) ** -0.5 if self.n_layers == self.odd_size else None
        x = b.embed(self.embedding(w), scale=math.sqrt(self.n_embd))
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            qkv = projections(b, w, self.norm(b, w, x, name + "attn_norm"), layer)
            chosen = local if self.local[layer] else rope
            a = self.attention(b, w, qkv, layer, states[layer], chosen, scale=scale, cap=cap)
            x = b.add(x, self.norm(b, w, a, name + "post_attention_norm"))
            f = self.feed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer, "gelu")
            x = b.add(x, self.norm(b, w, f, name + "post_ffw_norm"))
        return self.norm(b, w, x, "output_norm")


@architecture("gemma2")
@dataclass(frozen=True, kw_only=True)
class Gemma2(_Windowed):
    """Soft caps, every second layer with a sliding window; always tied."""

    window_default, window_period, odd_size = 4096, 2, 46

    attention_cap: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(
            keys,
            rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3),
            attention_cap=keys.real("attn_logit_softcapping", 50.0),
            final_cap=keys.real("final_logit_softcapping", 30.0),
            **own,
        )

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        x = self.sandwich(b, w, states, self.rope_scaling, normed_heads=False, cap=self.attention_cap)
        b.logits(x, self.embedding(w), cap=self.final_cap)


@architecture("gemma3")
@dataclass(frozen=True, kw_only=True)
class Gemma3(_Windowed):
    """Gemma 2 with normed heads instead of the attention's cap; five of six layers have the window."""

    window_default, window_period, odd_size = 0, 6, 62

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            rope_base_local=keys.real("rope.freq_base_swa", 10000.0, low=1e-3),
            final_cap=keys.real("final_logit_softcapping", 0.0),
            **own,
        )

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        # the window's layers are not stretched, but what the file puts on cosines and sines holds for all
        plain = RopeScaling(attention_factor=self.rope_scaling.attention_factor)
        x = self.sandwich(b, w, states, plain, normed_heads=True, cap=0.0)
        b.logits(x, self.output_matrix(w), cap=self.final_cap)
