"""One side of a comparison: a process that loads a model once and then measures what it is told.

A command and its answer are one line of JSON each, on stdin and stdout.  Between two
commands a side is expected to leave the processor alone; every answer tells how much
processor time it took nevertheless.  Only the standard library and numpy: the sides may
run under different interpreters.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

import numpy as np

WARM_UP = 4  # tokens generated before the clock starts: threads awake, weights in the caches where they fit


class Engine(Protocol):
    """What a side has to offer; ``variant`` names one of its settings."""

    def facts(self) -> dict[str, Any]:
        """Versions and settings, for the record."""

    def fill(self, variant: str, prefix: list[int]) -> None:
        """Bring the cache to exactly these tokens."""

    def prompt(self, variant: str, ids: list[int]) -> None:
        """Append a prompt and compute the logits of its last token."""

    def generate(self, variant: str, ids: list[int]) -> float:
        """Append tokens one at a time with the logits of each; seconds."""

    def last_logits(self, variant: str) -> np.ndarray:
        """The logits of the last token, float32 [n_vocab]."""


class Idle:
    """The processor time that this process takes while it is the other side's turn."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> dict[str, float]:
        return {
            "idle_s": time.perf_counter() - self._wall,
            "idle_cpu_s": time.process_time() - self._cpu,
        }


def serve(load: Any) -> None:
    """Answer commands until stdin ends.  ``load`` maps the options of the first line to an Engine."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    engine: Engine | None = None
    idle = Idle()
    for line in sys.stdin:
        answer: dict[str, Any] = idle.end()
        command = json.loads(line)
        try:
            if engine is None:
                engine = load(command)
                answer.update(engine.facts())
            else:
                answer.update(_execute(engine, command))
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        time.sleep(command.get("settle_s", 0.0))
        idle.begin()
        print(json.dumps(answer), file=answers, flush=True)


def _execute(engine: Engine, command: dict[str, Any]) -> dict[str, Any]:
    """Run a command: 'prefill' or 'decode', which are timed, or 'logits'."""
    variant, prefix, ids = command["variant"], command["prefix"], command["ids"]
    if command["do"] == "logits":
        return _logits(engine, variant, prefix, ids, command["file"])
    engine.fill(variant, prefix)
    engine.generate(variant, ids[:WARM_UP])
    engine.fill(variant, prefix)
    if command["do"] == "decode":
        return {"seconds": engine.generate(variant, ids)}
    started = time.perf_counter()
    engine.prompt(variant, ids)
    return {"seconds": time.perf_counter() - started}


def _logits(engine: Engine, variant: str, prefix: list[int], ids: list[int], file: str) -> dict[str, Any]:
    """Write the logits after the prefix and after each of the ids, float32 [1 + len(ids), n_vocab]."""
    engine.fill(variant, [])
    engine.prompt(variant, prefix)
    rows = [engine.last_logits(variant)]
    for token in ids:
        engine.generate(variant, [token])
        rows.append(engine.last_logits(variant))
    engine.fill(variant, [])
    np.save(file, np.stack(rows))
    return {}
