"""What a model is asked to run: the words that every backend and the engine share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Role = Literal["generated", "prompt"]
"""What the tokens of a run are; it decides how they are computed.

Generated: a few tokens, of one sequence or several.  Prompt: many, computed for throughput.
The same token may differ in the last bits between the roles, and in nothing else.
"""


class Part(NamedTuple):
    """What one run does for one sequence."""

    seq: Any
    """The backend's sequence."""
    ids: Sequence[int] | np.ndarray
    """The tokens to append."""
    n_logits: int = 1
    """For how many of them, at the end, logits are wanted."""
