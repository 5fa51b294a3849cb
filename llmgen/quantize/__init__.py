"""The same model in another type: which tensor gets which (``mixes``), and the new file (``writing``)."""

from __future__ import annotations

from llmgen.quantize.mixes import MIXES, Mix, mix_named
from llmgen.quantize.plan import Plan, TensorPlan, plan
from llmgen.quantize.writing import Written, quantize

__all__ = ["MIXES", "Mix", "Plan", "TensorPlan", "Written", "mix_named", "plan", "quantize"]
