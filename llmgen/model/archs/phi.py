"""Phi-3 (arXiv:2404.14219)."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder
from llmgen.model.ops import Ops, StateHandle
from llmgen.model.weights import Weights


@architecture("phi3")
class Phi3(Decoder):
    """Llama with rotary positions on halves; gate and up projections are one matrix, gate first."""

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope = self.rope(self.longrope_factors(b, w))
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            qkv = self.qkv(b, w, self.norm(b, w, x, name + "attn_norm"), layer)
            x = b.add(x, self.attention(b, w, qkv, layer, states[layer], rope))
            h = self.norm(b, w, x, name + "ffn_norm")
            both = w.matrix(name + "ffn_up", 2 * self.n_ff, self.n_embd)
            gate, up = (b.linear(h, both.rows(first, self.n_ff)) for first in (0, self.n_ff))
            down = w.matrix(name + "ffn_down", self.n_embd, self.n_ff)
            x = b.add(x, b.linear(b.gated(gate, up, "silu"), down))
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w))
