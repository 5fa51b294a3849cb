"""What one run may hold: the tokens of its parts, the room in their sequences."""

from __future__ import annotations

from typing import get_args

from llmgen.backends.cpu.kernels.layout import MAX_COLUMNS
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.errors import ContextFullError, UsageError
from llmgen.model.decoder import Decoder
from llmgen.model.runs import MAX_PARTS, Part, Role


def check_parts(parts: list[Part], role: Role, most_of_prompt: int, most_logits: int) -> None:
    """Raises UsageError for parts that do not fit into one run of a role.

    most_of_prompt: the most tokens of a run of prompts; most_logits: the most of a run whose logits may be wanted.
    """
    if role not in get_args(Role):
        raise UsageError(f"the role is {role!r}, expected 'generated', 'guess' or 'prompt'")
    most = most_of_prompt if role == "prompt" else MAX_COLUMNS
    total = n_logits = 0
    fits = True
    for part in parts:
        total += len(part.ids)
        n_logits += part.n_logits
        fits = fits and 0 <= part.n_logits <= len(part.ids)
    if not 1 <= len(parts) <= MAX_PARTS or total > most:
        raise UsageError(
            f"{len(parts)} sequences and {total} tokens, expected 1 to {MAX_PARTS} sequences of up to "
            f"{most} tokens together in the role {role!r}"
        )
    if len(parts) > 1 and len({id(part.seq) for part in parts}) != len(parts):
        raise UsageError("the same sequence was given twice, expected one part for each")
    if n_logits > most_logits or not fits:
        raise UsageError(
            f"the logits of {n_logits} tokens were asked for, expected those of at most {most_logits}, "
            "and of no more than a sequence is given"
        )


def check_room(seq: Sequence, n: int, layout: StateLayout) -> None:
    """Raises UsageError for another model's sequence, ContextFullError if n more tokens do not fit."""
    if seq.layout is not layout:
        raise UsageError("this sequence belongs to another model; make one with new_sequence of this model")
    if n > seq.room():
        raise ContextFullError(
            f"{n} more tokens do not fit: the context holds {layout.n_ctx} and {seq.length} are taken; "
            "use a larger context (-c)"
        )


def check_text(n: int, most_tokens: int, config: Decoder) -> None:
    """Raises UsageError for a text that would be cut into runs though its tokens see what comes after them."""
    if not config.causal and n > most_tokens:
        raise UsageError(
            f"{n} tokens, expected at most {most_tokens}: the tokens of {config.architecture} "
            "see those behind them, so that a text has to be computed in one run"
        )
