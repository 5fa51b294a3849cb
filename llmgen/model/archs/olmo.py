"""OLMo (arXiv:2402.00838) and OLMo 2 (arXiv:2501.00656)."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.model.archs import architecture
from llmgen.model.blocks import Clamped, NormedWidth, PostNorm, PreNorm
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("olmo")
class Olmo(Clamped, PreNorm):
    """Layer norms without weights; q, k and v may be clamped."""

    models = "OLMo 1B and 7B"
    neox = False
    eps_key = "attention.layer_norm_epsilon"

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.layer_norm(x, w.ones(x.n), None, self.norm_eps)


@architecture("olmo2")
class Olmo2(NormedWidth, Windowed, PostNorm):
    """Norms after the blocks instead of before them; q and k are normed over their whole width.

    Layers with a sliding window do not have their positions scaled.
    """

    models = "OLMo 2 and 3"

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole, local = self.rope(), Rope.of(self.n_rot, self.rope_base, self.neox)
        return [local if is_local else whole for is_local in self.local]


@architecture("olmoe")
class OLMoE(NormedWidth, Mixture):
    """Llama with experts; q and k are normed over their whole width."""

    models = "OLMoE 1B 7B (arXiv:2409.02060)"
    normalized, expert_size = False, "whole"
