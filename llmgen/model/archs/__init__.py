"""Architectures: each a short function that reads like the forward pass.

``build(recorder, weights, config)`` records one pass over the tokens of a run.
"""

from __future__ import annotations

from collections.abc import Callable

from llmgen.errors import UnsupportedModelError
from llmgen.model.archs import gemma, llama, olmo2, phi3, stablelm
from llmgen.model.config import ModelConfig
from llmgen.model.recorder import Recorder
from llmgen.model.weights import Weights

Build = Callable[[Recorder, Weights, ModelConfig], None]

ARCHITECTURES: dict[str, Build] = {
    "llama": llama.llama,
    "mistral3": llama.mistral3,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3,
    "phi3": phi3.phi3,
    "stablelm": stablelm.stablelm,
    "olmo2": olmo2.olmo2,
}
"""By ``general.architecture``."""


def architecture(name: str) -> Build:
    """The function of an architecture.  Raises UnsupportedModelError."""
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the model's architecture {name!r} is not supported; llmgen runs {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
