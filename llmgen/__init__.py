"""Run GGUF language models on a CPU.

``import llmgen`` is instant: the public names below load their modules, and with
them numpy and Numba, when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from llmgen.api import LLM
    from llmgen.engine import (
        Answer,
        Batch,
        Beam,
        Constraint,
        GenerationEvent,
        GenerationResult,
        GenerationStream,
        Processor,
        Request,
        Sampler,
        SamplingParams,
        Session,
        SpeculationStats,
        SpeculativeConfig,
        Timings,
        TokenLogprob,
    )
    from llmgen.errors import (
        ContextFullError,
        DownloadError,
        Interrupted,
        KernelError,
        LLMGenError,
        ModelFileError,
        TemplateError,
        TokenizerError,
        UnsupportedModelError,
        UsageError,
    )
    from llmgen.model.decode_config import DecodeConfig
    from llmgen.model.kv_config import KVAutoConfig, KVCacheConfig
    from llmgen.tokenizer import ChatTemplate, Tokenizer

__all__ = [
    "Answer",
    "Batch",
    "Beam",
    "ChatTemplate",
    "Constraint",
    "ContextFullError",
    "DecodeConfig",
    "DownloadError",
    "GenerationEvent",
    "GenerationResult",
    "GenerationStream",
    "Interrupted",
    "KVAutoConfig",
    "KVCacheConfig",
    "KernelError",
    "LLM",
    "LLMGenError",
    "ModelFileError",
    "Processor",
    "Request",
    "Sampler",
    "SamplingParams",
    "Session",
    "SpeculationStats",
    "SpeculativeConfig",
    "TemplateError",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
]

_NAMES_IN = {
    "llmgen.api": "LLM",
    "llmgen.errors": """ContextFullError DownloadError Interrupted KernelError LLMGenError ModelFileError
        TemplateError TokenizerError UnsupportedModelError UsageError""",
    "llmgen.engine": """Answer Batch Beam Constraint GenerationEvent GenerationResult GenerationStream
        Processor Request Sampler SamplingParams Session SpeculationStats SpeculativeConfig Timings TokenLogprob""",
    "llmgen.model.decode_config": "DecodeConfig",
    "llmgen.model.kv_config": "KVAutoConfig KVCacheConfig",
    "llmgen.tokenizer": "ChatTemplate Tokenizer",
}
_HOME = {name: home for home, names in _NAMES_IN.items() for name in names.split()}


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
