"""From a prompt to an answer: sessions, streams, batches, beams, endings.

Where to begin reading:

stream.py          the events of one answer: a scheduler with one request
scheduler.py       the one loop: prompts, then a token for each answer, step by step
request_state.py   a request at work; completion.py: its answer, logits in and events out
sequence_state.py  which tokens of a sequence are computed, kept or dropped
endings.py         how an answer ends by itself; stopping.py: from outside
session.py         a sequence that several answers grow on; batch.py: many answers at once
beams.py           beam search; perplexity.py: how well a model predicts a text
guessing.py        guesses for the next run (speculation/ makes them)
kv_plan.py         the choice of a kind of KV cache, measured by kv_measure.py

The names below load on first use, so that the command line can read the
options of :class:`SamplingParams` without importing numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmgen.engine.batch import Batch
    from llmgen.engine.beams import Beam, BeamOptions, BeamSearch
    from llmgen.engine.events import GenerationEvent, GenerationResult, Timings
    from llmgen.engine.requests import Answer, Request
    from llmgen.engine.session import Session
    from llmgen.engine.speculation.config import SpeculativeConfig
    from llmgen.engine.speculation.stats import SpeculationStats
    from llmgen.engine.stream import GenerationStream
    from llmgen.sampling.interfaces import Constraint, Processor
    from llmgen.sampling.params import SamplingParams
    from llmgen.sampling.sampler import Sampler
    from llmgen.sampling.scores import TokenLogprob

_HOME = {
    "Answer": "llmgen.engine.requests",
    "Batch": "llmgen.engine.batch",
    "Request": "llmgen.engine.requests",
    "Beam": "llmgen.engine.beams",
    "BeamOptions": "llmgen.engine.beams",
    "BeamSearch": "llmgen.engine.beams",
    "Constraint": "llmgen.sampling.interfaces",
    "GenerationEvent": "llmgen.engine.events",
    "GenerationResult": "llmgen.engine.events",
    "GenerationStream": "llmgen.engine.stream",
    "Processor": "llmgen.sampling.interfaces",
    "Sampler": "llmgen.sampling.sampler",
    "SamplingParams": "llmgen.sampling.params",
    "Session": "llmgen.engine.session",
    "SpeculationStats": "llmgen.engine.speculation.stats",
    "SpeculativeConfig": "llmgen.engine.speculation.config",
    "Timings": "llmgen.engine.events",
    "TokenLogprob": "llmgen.sampling.scores",
}

__all__ = [
    "Answer",
    "Batch",
    "Request",
    "Beam",
    "BeamOptions",
    "BeamSearch",
    "Constraint",
    "GenerationEvent",
    "GenerationResult",
    "GenerationStream",
    "Processor",
    "Sampler",
    "SamplingParams",
    "Session",
    "SpeculationStats",
    "SpeculativeConfig",
    "Timings",
    "TokenLogprob",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
