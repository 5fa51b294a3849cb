"""From logits to text: sampling, stopping, sessions and batches.

The names below load on first use, so that the command line can read the
options of :class:`SamplingParams` without importing numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmgen.generation.batch import Batch
    from llmgen.generation.beams import Beam, BeamOptions, BeamSearch
    from llmgen.generation.events import GenerationEvent, GenerationResult, Timings, TokenLogprob
    from llmgen.generation.params import SamplingParams
    from llmgen.generation.requests import Answer, Request
    from llmgen.generation.sampler import Sampler
    from llmgen.generation.session import Session
    from llmgen.generation.stream import GenerationStream

_HOME = {
    "Answer": "requests",
    "Batch": "batch",
    "Request": "requests",
    "Beam": "beams",
    "BeamOptions": "beams",
    "BeamSearch": "beams",
    "GenerationEvent": "events",
    "GenerationResult": "events",
    "GenerationStream": "stream",
    "Sampler": "sampler",
    "SamplingParams": "params",
    "Session": "session",
    "Timings": "events",
    "TokenLogprob": "events",
}

__all__ = [
    "Answer",
    "Batch",
    "Request",
    "Beam",
    "BeamOptions",
    "BeamSearch",
    "GenerationEvent",
    "GenerationResult",
    "GenerationStream",
    "Sampler",
    "SamplingParams",
    "Session",
    "Timings",
    "TokenLogprob",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
