"""Architectures: each a short function that reads like the forward pass.

``build(recorder, weights, config)`` records one pass over the tokens of a run.
"""

from __future__ import annotations

from collections.abc import Callable

from llmgen.backends.cpu.recorder import Recorder
from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGUFFile
from llmgen.model.archs import gemma, llama, olmo2, phi3, stablelm
from llmgen.model.config import ModelConfig
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

_NAMED = 6
"""How many tensors a message names."""


def architecture(file: GGUFFile) -> Build:
    """The function of a file's architecture.

    To be asked before any other key is read: what those mean depends on it.  Raises
    UnsupportedModelError.
    """
    name = file.architecture
    if name is None:
        raise UnsupportedModelError(
            f"{file.path} has no general.architecture, so it is no model; choose another file"
        )
    experts = _experts(file)
    if experts:
        raise UnsupportedModelError(
            f"the model is a mixture of experts ({shown(name, quote=False)} with {experts}), which llmgen "
            f"does not run; use a dense model of one of the architectures {', '.join(ARCHITECTURES)}"
        )
    if name not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the model's architecture {shown(name)} is not supported; llmgen runs {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def _experts(file: GGUFFile) -> str:
    """What makes the file a mixture of experts, in words; empty for a dense model."""
    for key in ("expert_count", "expert_used_count"):
        value = file.metadata.get(f"{file.architecture}.{key}")
        if value is not None and value is not False and not (isinstance(value, int) and value == 0):
            return f"{key} {shown(value)}"
    tensor = next((name for name in file.tensors if "_exps." in name), None)
    return f"the tensor {shown(tensor, quote=False)}" if tensor else ""


def check_all_read(file: GGUFFile, weights: Weights, config: ModelConfig) -> None:
    """Refuse a file with tensors that its architecture's function has not read.

    What they do to the model is not computed, so its text would be fluent and wrong.
    llama.cpp refuses such files too (``done_getting_tensors`` in src/llama-model-loader.cpp).
    Raises UnsupportedModelError with the names.
    """
    unread = weights.unread()
    if not unread:
        return
    names = ", ".join(shown(name, quote=False) for name in unread[:_NAMED])
    more = f" and {len(unread) - _NAMED:,} more" if len(unread) > _NAMED else ""
    block = f"blk.{config.n_layers}."
    if any(name.startswith(block) for name in unread):
        reason = f"{config.architecture}.block_count is {config.n_layers}, but the file has more blocks"
    else:
        reason = f"llmgen's {config.architecture} does not read {_tensors(len(unread))} of {file.path.name}"
    raise UnsupportedModelError(
        f"{reason} ({names}{more}), so its answers would be wrong; get another conversion of the model, "
        "or a newer llmgen"
    )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"
