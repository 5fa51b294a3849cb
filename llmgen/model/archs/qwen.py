"""Qwen 2 (arXiv:2407.10671) and Qwen 3 (arXiv:2505.09388)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder
from llmgen.model.ops import Ops, StateHandle
from llmgen.model.weights import Weights


@architecture("qwen2")
class Qwen2(Decoder):
    """Llama with rotary positions on halves, biases on q, k and v, and perhaps one on the logits."""

    normed_heads: ClassVar[bool] = False

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        projections = self.normed_qkv if self.normed_heads else self.qkv
        rope = self.rope()
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            qkv = projections(b, w, self.norm(b, w, x, f"blk.{layer}.attn_norm"), layer)
            x = b.add(x, self.attention(b, w, qkv, layer, states[layer], rope))
            x = b.add(x, self.feed_forward(b, w, self.norm(b, w, x, f"blk.{layer}.ffn_norm"), layer))
        bias = None if self.normed_heads else w.optional_vector("output.bias", self.vocab_size)
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w), bias)


@architecture("qwen3")
class Qwen3(Qwen2):
    """Qwen 2 with an RMS norm over each head of q and k, and no bias on the logits."""

    normed_heads = True

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        w.skip("cls.output")  # the head of a reranker
        super().forward(b, w, states)
