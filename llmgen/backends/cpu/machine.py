"""What measured times depend on beside the model."""

from __future__ import annotations

from llmgen.backends.cpu.runtime.cpu import target


def machine(kernel_level: str, n_threads: int) -> str:
    """The processor and how it is used; what was measured holds where this is equal."""
    return f"{target().cpu} {kernel_level} {n_threads} threads"
