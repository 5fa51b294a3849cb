"""The arguments of the step that looks up experts; see arguments.py, whose words hold here too."""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES


class LookUp(NamedTuple):
    """expert_table:look_up: the experts that a table names for each token, and their weights."""

    logits: Any  # float32 [tokens][n_experts]
    logits_stride: Any
    n_experts: Any
    n_used: Any
    table: Any  # int64 [vocabulary][n_used]
    number: Any  # which field of the control block has the tokens' ids, in bytes from ``control``
    normalize: Any  # 1: the weights are divided by their sum
    scale: float
    ids: Any  # int64 [tokens][n_used]
    ids_stride: Any
    weights: Any  # float32 [tokens][n_used]
    weights_stride: Any
    scratch: Any  # float32 [n_experts], in whole vectors
    split_tokens: Any
    control: Any


TABLES["expert_table:look_up"] = LookUp
