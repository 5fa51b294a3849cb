"""DBRX (Databricks, 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.blocks import Clamped, LayerNorms
from llmgen.model.mixtures import Mixture


@architecture("dbrx")
@dataclass(frozen=True, kw_only=True)
class DBRX(LayerNorms, Clamped, Mixture):
    """Layer norms, rotary positions on halves, clamped q, k and v, experts."""

    models = "DBRX 132B A36B"
    ff_norm, expert_size, clamp_default = "attn_output_norm", "whole", None
