"""OLMo 2 (arXiv:2501.00656)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder, check_same_heads
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.ops import Ops, StateHandle
from llmgen.model.rope import Rope
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@architecture("olmo2")
@dataclass(frozen=True, kw_only=True)
class Olmo2(Decoder):
    """Norms after the blocks instead of before them; q and k are normed over their whole width."""

    window: int
    local: tuple[bool, ...]  # layers with the sliding window, whose positions are not scaled

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        window = keys.whole("attention.sliding_window", 0, 0, MAX_CONTEXT)
        n_layers = keys.whole("block_count")
        key = "attention.sliding_window_pattern"
        local = keys.every_nth(key, n_layers, 4) if window else (False,) * n_layers
        model = super().read(keys, window=window, local=local, **own)
        if window:
            check_same_heads(keys, model.head_dim, model.n_rot)
        return model

    def states(self) -> list[State]:
        return [
            KV(self.n_kv_heads, self.head_dim, self.head_dim, self.window if local else 0)
            for local in self.local
        ]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope = self.rope()
        local = Rope.of(self.n_rot, self.rope_base, self.neox)
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            q, k, v = self.qkv(b, w, x, layer)
            q, k = self.norm(b, w, q, name + "attn_q_norm"), self.norm(b, w, k, name + "attn_k_norm")
            a = self.attention(b, w, (q, k, v), layer, states[layer], local if self.local[layer] else rope)
            x = b.add(x, self.norm(b, w, a, name + "post_attention_norm"))
            f = self.feed_forward(b, w, x, layer)
            x = b.add(x, self.norm(b, w, f, name + "post_ffw_norm"))
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w))
