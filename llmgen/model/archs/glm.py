"""ChatGLM 3 and GLM-4 (arXiv:2406.12793)."""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PreNorm, Sandwich
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Sections
from llmgen.model.weights import Weights


@architecture("chatglm")
class ChatGLM(PreNorm):
    """Llama whose gate and up projections are one matrix; half of a head rotates, in neighbouring pairs."""

    models = "ChatGLM 3 6B, GLM-4 9B, GLM-Edge, CodeGeeX 4"
    neox, ff_kind = False, "fused"


@architecture("glm4")
@dataclass(frozen=True, kw_only=True)
class GLM4(DraftLayers, Sections, Sandwich):
    """Norms before and after the blocks, rotary positions on pairs; with images on halves and four axes."""

    models = "GLM-4 0414 9B and 32B, GLM-Z1, GLM-4.1V Thinking (text)"
    neox, ff_kind = False, "fused"
    sections_required = False


@architecture("glm4moe")
@dataclass(frozen=True, kw_only=True)
class GLM4MoE(DraftLayers, Sections, Mixture):
    """Llama with experts and a shared expert; heads may be normed; the first layers are dense."""

    models = "GLM-4.5, 4.6 and 4.7, GLM-4.5 Air, GLM-4.5V and 4.6V (text), Solar Open"
    ff_norm, sections_required, leading_dense = "post_attention_norm", False, True
    gating, gating_default, normalized, scaled, shared_size = None, "sigmoid", None, True, "count"

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        normed = w.has(f"blk.{layer}.attn_q_norm")
        return self.normed_qkv(b, w, x, layer) if normed else self.qkv(b, w, x, layer)
