"""MiniMax M2."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import NormedWidth
from llmgen.model.mixtures import Mixture


@architecture("minimax-m2")
class MiniMaxM2(NormedWidth, Mixture):
    """Experts chosen with a bias; q and k are normed over their whole width; half of a head rotates."""

    models = "MiniMax M2 and M2.1"
    gating, expert_size = None, "whole"
