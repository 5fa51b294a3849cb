"""Run GGUF language models on a CPU.

``import llmgen`` is instant: the public names below load their modules, and with
them numpy and Numba, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from llmgen.api import LLM
    from llmgen.errors import LLMGenError
    from llmgen.generation import GenerationEvent, GenerationResult, SamplingParams, Session
    from llmgen.tokenizer import ChatTemplate, Tokenizer

__all__ = [
    "LLM",
    "ChatTemplate",
    "GenerationEvent",
    "GenerationResult",
    "LLMGenError",
    "SamplingParams",
    "Session",
    "Tokenizer",
    "__version__",
]

_HOME = {
    "LLM": "llmgen.api",
    "ChatTemplate": "llmgen.tokenizer",
    "GenerationEvent": "llmgen.generation",
    "GenerationResult": "llmgen.generation",
    "LLMGenError": "llmgen.errors",
    "SamplingParams": "llmgen.generation",
    "Session": "llmgen.generation",
    "Tokenizer": "llmgen.tokenizer",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'llmgen' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
