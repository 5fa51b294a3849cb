"""``llmgen chat`` over pipes: what it prints of a scripted conversation."""

from __future__ import annotations

import json
from typing import Any

from models import smollm2
from program import llmgen


def chat(*lines: str, options: tuple[str, ...] = (), code: int = 0, **changes: str) -> tuple[str, str]:
    """Stdout and stderr of a conversation from a pipe, with short greedy answers."""
    done = llmgen(
        *("chat", str(smollm2()), "--temp", "0", "-n", "12", *options),
        input="".join(f"{line}\n" for line in lines),
        **changes,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def answers(*lines: str, options: tuple[str, ...] = (), code: int = 0) -> list[dict[str, Any]]:
    """The JSON lines of a conversation."""
    out, _ = chat(*lines, options=("--json", *options), code=code)
    return [json.loads(line) for line in out.splitlines()]
