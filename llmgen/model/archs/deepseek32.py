"""DeepSeek V3.2 (arXiv:2512.02556) and GLM 5: each token attends to the keys that an indexer has chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.archs.deepseek2 import DeepSeek2
from llmgen.model.indexer import Indexed, indexer_layers
from llmgen.model.keys import MAX_CONTEXT, Keys


@architecture("deepseek32")
@dataclass(frozen=True, kw_only=True)
class DeepSeek32(Indexed, DeepSeek2):
    """DeepSeek V3 whose layers choose the keys that a token sees, by scores of an indexer with keys of its own."""

    models = "DeepSeek V3.2"
    cancels_magnitude = False

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        own.setdefault("indexer_eps", keys.real("attention.layer_norm_epsilon", 0.0, high=1.0))
        own.setdefault("has_indexer", (True,) * keys.whole("block_count"))
        return super().read(keys, **own)


@architecture("glm-dsa")
@dataclass(frozen=True, kw_only=True)
class GLM5(DeepSeek32):
    """DeepSeek V3.2 whose indexer rotates neighbouring pairs; in long models some layers share a choice."""

    models = "GLM-5, 5.1 and 5.2"
    gating_default = "sigmoid"
    indexer_neox = False

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count") - keys.whole("nextn_predict_layers", 0, low=0)
        default = (True,) * n_layers
        if (
            keys.whole("context_length", high=MAX_CONTEXT) >= 1 << 20
        ):  # GLM 5.2, whose first files do not say so
            default = tuple(layer < 2 or layer % 4 == 2 for layer in range(n_layers))
        has_indexer = indexer_layers(keys, n_layers, default)
        return super().read(keys, indexer_eps=1e-6, log_multiplier=0.0, has_indexer=has_indexer, **own)

    @classmethod
    def read_scores(cls, keys: Keys) -> Any:
        return super(DeepSeek2, cls).read_scores(keys)
