"""The text part of CogVLM (arXiv:2311.03079)."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.ops import Ops, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("cogvlm")
class CogVLM(PreNorm):
    """Llama with rotary positions on halves, never scaled; the matrices for images are not used."""

    models = "CogVLM (text)"

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        w.skip("rope_freqs")
        return [Rope.of(self.head_dim, 10000.0, self.neox)] * self.n_layers

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        for name in ("attn_qkv", "attn_output", "gate", "down", "up"):
            w.skip(f"blk.{layer}.vis_{name}")
        return super().fed_forward(b, w, x, layer)
