"""ChatGLM 3 and GLM-4 (arXiv:2406.12793)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm, Sandwich, Sections


@architecture("chatglm")
class ChatGLM(PreNorm):
    """Llama whose gate and up projections are one matrix; half of a head rotates, in neighbouring pairs."""

    models = "ChatGLM 3 6B, GLM-4 9B, GLM-Edge, CodeGeeX 4"
    neox, ff_kind = False, "fused"


@architecture("glm4")
class GLM4(Sections, Sandwich):
    """Norms before and behind the blocks, rotary positions on pairs; with images on halves and four axes."""

    models = "GLM-4 0414 9B and 32B, GLM-Z1, GLM-4.1V Thinking (text)"
    neox, ff_kind = False, "fused"
    sections_required = False
